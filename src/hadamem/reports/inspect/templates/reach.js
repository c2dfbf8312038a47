// Triangles of steps against earlier steps, each with its profile at the present step: gradient reach, products of factors, attention.
const DECADES = 5;           // of norms that colours can tell apart

// values(row, column): number or nan; targets, sources: the steps of rows and columns; log: colours by orders of magnitude.
function addTriangle(parent, { id, name, help, targets, sources, values, log, isRelative }) {
  const rows = targets.length, columns = sources.length;
  let image = null, made = null, box = null, top = 1;
  const present = () => {        // the latest row that is not later than the present step
    let k = 0;
    while (k + 1 < rows && targets[k + 1] <= chosen.step) k++;
    return k;
  };
  const own = k => {             // what a step is compared with: the largest in its row
    let most = 0;
    for (let c = 0; c < columns; c++) { const v = values(k, c); if (Number.isFinite(v)) most = Math.max(most, v); }
    return most;
  };
  const level = v => log ? Math.max(0, 1 + Math.log10(v / top) / DECADES) : v / top;
  const sourceOf = x => {
    const c = Math.floor((x - box.x) / box.width * columns);
    return c < 0 || c >= columns ? null : c;
  };
  const refresh = () => {
    const key = `${isRelative()} ${chosen.head}`;
    if (made === key) return;
    made = key;
    const most = Array.from({ length: rows }, (_, k) => own(k));
    top = isRelative() ? 1 : Math.max(...most) || 1;
    image = makeImage(rows, columns, (k, c) => {
      const v = values(k, c);
      if (!Number.isFinite(v)) return EMPTY;
      return TABLES.viridis[Math.max(0, Math.min(255, Math.round(255 * level(isRelative() ? v / (most[k] || 1) : v))))];
    });
  };
  addFigure(parent, {
    id, name, help, height: width => Math.min(400, Math.round(width * 0.62)),
    paint(ctx, width, height) {
      refresh();
      box = { x: 52, y: 8, width: width - 52 - 92, height: height - 8 - 46 };
      drawImage(ctx, image, box);
      drawBar(ctx, TABLES.viridis, box.x + box.width + 10, box.y, box.height, [`${number(top)}${isRelative() ? " of row" : ""}`, null, log ? `≤ ${number(top / 10 ** DECADES)}` : "0"]);
      drawTimeAxis(ctx, box, false);
      write(ctx, "earlier step i", box.x + box.width / 2, height - 12, "center");
      const picks = [...new Set([0, 0.25, 0.5, 0.75, 1].map(f => Math.round(f * (rows - 1))))];
      for (const k of picks) write(ctx, String(targets[k]), box.x - 6, box.y + (k + 0.5) / rows * box.height, "right");
      ctx.save();
      ctx.translate(12, box.y + box.height / 2);
      ctx.rotate(-Math.PI / 2);
      write(ctx, "later step t", 0, 0, "center");
      ctx.restore();
      const y = box.y + (present() + 0.5) / rows * box.height;
      ctx.strokeStyle = "#c1121f";
      ctx.lineWidth = 1.5;
      line(ctx, box.x, y, box.x + box.width, y);
    },
    pointed(x, y) {
      if (!box) return "";
      const c = sourceOf(x), k = Math.floor((y - box.y) / box.height * rows);
      if (c === null || k < 0 || k >= rows) return "";
      return `t = ${targets[k]}, i = ${sources[c]}: ${number(values(k, c))}`;
    },
    picked(x, y) {
      const k = Math.floor((y - box.y) / box.height * rows);
      if (k >= 0 && k < rows) goTo(targets[k]);
    },
  });
  let plot = null;
  addFigure(parent, {
    id: `${id || name} now`, name: `${name} at this step`, help: "the marked row as a curve: what each earlier step still counts now",
    height: width => Math.min(400, Math.round(width * 0.62)),
    paint(ctx, width, height) {
      refresh();
      const k = present(), most = own(k) || 1;
      plot = { x: 58, y: 8, width: width - 58 - 20, height: height - 8 - 46 };
      const ceiling = isRelative() ? most : top;
      const high = log ? Math.ceil(Math.log10(ceiling)) : ceiling, low = log ? high - DECADES : 0;
      const yOf = v => plot.y + plot.height * (1 - ((log ? Math.max(low, Math.log10(v)) : v) - low) / (high - low));
      const marks = log ? Array.from({ length: DECADES + 1 }, (_, n) => 10 ** (low + n)) : ticks(0, high, 5);
      for (const v of marks) {
        ctx.strokeStyle = "#eceef1";
        ctx.lineWidth = 1;
        line(ctx, plot.x, yOf(v), plot.x + plot.width, yOf(v));
        write(ctx, log ? number(v) : tickText(v, marks), plot.x - 7, yOf(v), "right");
      }
      ctx.strokeStyle = LINES[0];
      ctx.fillStyle = LINES[0];
      ctx.lineWidth = 1.8;
      ctx.beginPath();
      for (let c = 0; c < columns; c++) {
        const v = values(k, c);
        if (!Number.isFinite(v)) break;
        const x = timeToX(plot, sources[c]), y = yOf(Math.min(v, 10 ** 30));
        ctx.lineTo(x, y);
        if (columns <= 80) ctx.fillRect(x - 2, y - 2, 4, 4);
      }
      ctx.stroke();
      ctx.strokeStyle = "#c1121f";
      ctx.lineWidth = 1.5;
      line(ctx, timeToX(plot, targets[k]), plot.y, timeToX(plot, targets[k]), plot.y + plot.height);
      drawTimeAxis(ctx, plot, false);
      write(ctx, `earlier step i, seen from t = ${targets[k]}`, plot.x + plot.width / 2, height - 12, "center");
    },
    pointed(x) {
      if (!plot) return "";
      const t = xToTime(plot, x);
      if (t === null) return "";
      let c = 0;
      while (c + 1 < columns && sources[c + 1] <= t) c++;
      return `i = ${sources[c]}: ${number(values(present(), c))}`;
    },
  });
}

function addAttention(parent, trace) {
  const { bins, heads } = trace, width = Math.ceil(DATA.steps / bins), steps = Array.from({ length: bins }, (_, n) => n * width);
  addTriangle(parent, {
    id: trace.name, name: `Attention, ${trace.help}`, help: "weight of step i at step t", targets: steps, sources: steps, log: false,
    isRelative: () => ["auto", "step"].includes(chosen.scale),
    values: (k, c) => c > k ? NaN : valueAt(trace.map, k, Math.min(chosen.head, heads - 1) * bins + c, heads * bins),
  });
}
