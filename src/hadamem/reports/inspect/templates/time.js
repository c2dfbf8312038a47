// Plots over the whole episode, with time along the bottom: curves, bars, shares, maps of vectors.
const LEFT = 72, RIGHT = 76, BELOW = 22;       // room around every plot, the same for all, so that steps lie below each other

function timeBox(width, height) {
  return { x: LEFT, y: 6, width: width - LEFT - RIGHT, height: height - BELOW - 6 };
}

function addTimeFigure(parent, options) {
  let box = timeBox(600, options.height);
  return addFigure(parent, {
    ...options,
    paint(ctx, width, height) {
      box = timeBox(width, height);
      options.paint(ctx, box);
      drawTimeAxis(ctx, box);
      drawCursor(ctx, box);
    },
    pointed(x, y) {
      const t = xToTime(box, x);
      return t === null ? "" : options.text(t, (y - box.y) / box.height);
    },
    picked(x) {
      const t = xToTime(box, x);
      if (t !== null) goTo(t);
    },
  });
}

function range(lists) {
  let low = Infinity, high = -Infinity;
  for (const list of lists) for (const x of list) if (Number.isFinite(x) && Math.abs(x) < 1e30) { low = Math.min(low, x); high = Math.max(high, x); }
  if (low > high) return [0, 1];
  if (low === high) return low === 0 ? [-1, 1] : [Math.min(0, 2 * low), Math.max(0, 2 * high)];
  return [low - (high - low) * 0.05, high + (high - low) * 0.05];
}

function drawValueAxis(ctx, box, low, high) {
  const y = v => box.y + box.height * (1 - (v - low) / (high - low));
  const marks = ticks(low, high, Math.max(3, box.height / 24));
  for (const v of marks) {
    ctx.strokeStyle = "#eceef1";
    ctx.lineWidth = 1;
    line(ctx, box.x, y(v), box.x + box.width, y(v));
    write(ctx, tickText(v, marks), box.x - 7, y(v), "right");
  }
  return y;
}

function addCurves(parent, name, help, curves, { height = 110, limits = null, bars = false } = {}) {
  const [low, high] = limits || range(curves.map(curve => curve.values).concat(bars ? [[0]] : []));
  const figure = addTimeFigure(parent, {
    name, help, height,
    paint(ctx, box) {
      const y = drawValueAxis(ctx, box, low, high);
      curves.forEach(({ values }, n) => {
        ctx.strokeStyle = ctx.fillStyle = LINES[n % LINES.length];
        ctx.lineWidth = 1.6;
        if (bars) {
          const wide = Math.max(1.5, Math.min(7, box.width / DATA.steps * 0.7));
          values.forEach((v, t) => { if (v) ctx.fillRect(timeToX(box, t) - wide / 2, Math.min(y(0), y(v)), wide, Math.max(1, Math.abs(y(v) - y(0)))); });
          line(ctx, box.x, y(0), box.x + box.width, y(0));
          return;
        }
        ctx.beginPath();
        values.forEach((v, t) => ctx.lineTo(timeToX(box, t), y(Math.max(low, Math.min(high, v)))));
        ctx.stroke();
      });
    },
    text: t => `step ${t}: ${curves.map(curve => (curves.length > 1 ? `${curve.short || curve.name} ` : "") + number(curve.values[t])).join(", ")}`,
  });
  if (curves.length > 1) addLegend(figure, curves.map((curve, n) => [LINES[n % LINES.length], curve.name, true]));
  return figure;
}

function addShares(parent, trace) {
  const T = DATA.steps;
  const share = (t, part) => trace.shares[(chosen.epsilon * T + t) * 2 + part];
  const figure = addTimeFigure(parent, {
    id: `shares of ${trace.name}`, name: `Shares of ${trace.name}`, height: 130,
    help: "share of all cells whose old value the step made smaller, kept, or made larger",
    paint(ctx, box) {
      const wide = box.width / T;
      for (let t = 0; t < T; t++) {
        const x = Math.floor(box.x + t * wide), end = Math.floor(box.x + (t + 1) * wide) + (wide < 1 ? 1 : 0), across = end - x;
        const down = share(t, 0) * box.height, up = share(t, 1) * box.height;
        ctx.fillStyle = KEPT;
        ctx.fillRect(x, box.y, across, box.height);
        ctx.fillStyle = ERASED;
        ctx.fillRect(x, box.y + box.height - down, across, down);
        ctx.fillStyle = GROWN;
        ctx.fillRect(x, box.y, across, up);
      }
      for (const v of [0, 0.5, 1]) write(ctx, `${100 * v} %`, box.x - 7, box.y + box.height * (1 - v) + (v === 1 ? 5 : v === 0 ? -4 : 0), "right");
    },
    text: t => `step ${t}: ${percent(share(t, 0))} erased, ${percent(1 - share(t, 0) - share(t, 1))} kept, ${percent(share(t, 1))} strengthened`,
  });
  addLegend(figure, [[ERASED, `erased: ${trace.name} < 1 − ε`], [KEPT, "kept"], [GROWN, `strengthened: ${trace.name} > 1 + ε`]]);
}

function percent(x) {
  return `${(100 * x).toFixed(x > 0.0005 && x < 0.0995 ? 1 : 0)} %`;
}

// A vector at every step: units from top to bottom. names: of the units; marks[t]: units to mark.
function addVectorMap(parent, trace, { names = null, marks = null, height = null } = {}) {
  const T = DATA.steps, units = trace.columns.length, colours = tableFor(trace);
  let image = null, made = null;
  addTimeFigure(parent, {
    id: trace.name, name: trace.title || trace.name, help: trace.help, height: height || Math.max(84, Math.min(190, units * 2 + 40)),
    paint(ctx, box) {
      if (made !== chosen.scale) {
        image = makeImage(units, T, (u, t) => colours[shade(trace.map, t, trace.map.data[t * units + u], spreadOf(trace.map, t, false))]);
        made = chosen.scale;
      }
      drawImage(ctx, image, box);
      const labels = barLabels(trace.map, spreadOf(trace.map, chosen.step, false));
      drawBar(ctx, colours, box.x + box.width + 10, box.y, box.height, box.height < 50 ? [labels[0], null, labels[2]] : labels);
      const high = box.height / units;
      if (names) {
        names.forEach((name, u) => { if (high >= 11) write(ctx, fit(ctx, name, LEFT - 10), box.x - 7, box.y + (u + 0.5) * high, "right"); });
      } else {
        write(ctx, String(trace.columns[0]), box.x - 7, box.y + 6, "right");
        write(ctx, String(trace.columns[units - 1]), box.x - 7, box.y + box.height - 6, "right");
        write(ctx, "unit", box.x - 7, box.y + box.height / 2, "right");
      }
      if (marks) {
        const size = Math.max(1.2, Math.min(3.2, box.width / T * 0.32, high * 0.3));
        marks.forEach((chosenUnits, t) => chosenUnits.forEach(u => {
          ctx.beginPath();
          ctx.arc(timeToX(box, t), box.y + (u + 0.5) * high, size, 0, 7);
          ctx.fillStyle = "#ffffff";
          ctx.fill();
          ctx.lineWidth = 1;
          ctx.strokeStyle = INK;
          ctx.stroke();
        }));
      }
    },
    text(t, share) {
      const u = Math.floor(share * units);
      if (u < 0 || u >= units) return `step ${t}`;
      return `step ${t}, ${names ? names[u] : `unit ${trace.columns[u]}`}: ${number(valueAt(trace.map, t, u, units))}`;
    },
  });
}

function fit(ctx, text, room) {
  if (ctx.measureText(text).width <= room) return text;
  while (text.length > 1 && ctx.measureText(`${text}…`).width > room) text = text.slice(0, -1);
  return `${text}…`;
}
