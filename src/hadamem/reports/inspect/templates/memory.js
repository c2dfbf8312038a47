// Maps of matrices at the present step: the memory, what multiplied it, what was added, and which cells were erased.
function addMatrix(parent, trace) {
  const colours = tableFor(trace);
  addMap(parent, trace, trace.name, trace.help, (at, spread) => (r, c) => colours[shade(trace.map, at, byteOf(trace, at, r, c), spread)],
    (ctx, box, spread) => drawBar(ctx, colours, box.x + box.width + 10, box.y, box.height, barLabels(trace.map, spread)),
    (at, r, c) => number(valueAt(trace.map, at, r * trace.columns.length + c, trace.rows.length * trace.columns.length)));
}

function addClasses(parent, trace) {
  const kinds = [rgb(ERASED), rgb(KEPT), rgb(GROWN)], width = trace.rows.length * trace.columns.length;
  const kind = (at, r, c) => {
    const away = valueAt(trace.map, at, r * trace.columns.length + c, width) - 1, epsilon = DATA.epsilons[chosen.epsilon];
    return away < -epsilon ? 0 : away > epsilon ? 2 : 1;
  };
  const figure = addMap(parent, trace, `Cells by ${trace.name}`, "what the step did to each cell of the old memory",
    at => (r, c) => kinds[kind(at, r, c)], null, (at, r, c) => ["erased", "kept", "strengthened"][kind(at, r, c)]);
  addLegend(figure, [[ERASED, "erased"], [KEPT, "kept"], [GROWN, "strengthened"]]);
}

function byteOf(trace, at, r, c) {
  return trace.map.data[(at * trace.rows.length + r) * trace.columns.length + c];
}

function addMap(parent, trace, name, help, colourOf, drawScale, textOf) {
  const rows = trace.rows.length, columns = trace.columns.length;
  let box = null;
  const index = () => Math.floor(chosen.step / trace.every);
  const room = width => width - 30 - 74;
  const height = width => Math.round(Math.min(room(width), 300) * Math.max(0.3, Math.min(1, rows / columns))) + 26;
  return addFigure(parent, {
    id: name, name, help, height,
    paint(ctx, width, high) {
      const square = (high - 26) / rows * columns;
      box = { x: 30, y: 4, width: Math.min(room(width), Math.max(square, 110)), height: high - 26 };
      const at = index(), spread = spreadOf(trace.map, at, true);
      drawImage(ctx, makeImage(rows, columns, colourOf(at, spread)), box);
      if (drawScale) drawScale(ctx, box, spread);
      [0, rows - 1].forEach((r, last) => write(ctx, String(trace.rows[r]), box.x - 6, box.y + (last ? box.height - 6 : 6), "right"));
      [0, columns - 1].forEach((c, last) => write(ctx, String(trace.columns[c]), box.x + last * box.width, box.y + box.height + 5, last ? "right" : "left", "top"));
      const stored = at * trace.every;
      write(ctx, stored === chosen.step ? "column" : `at step ${stored}`, box.x + box.width / 2, box.y + box.height + 5, "center", "top");
      ctx.save();
      ctx.translate(11, box.y + box.height / 2);
      ctx.rotate(-Math.PI / 2);
      write(ctx, "row", 0, 0, "center");
      ctx.restore();
    },
    pointed(x, y) {
      if (!box) return "";
      const r = Math.floor((y - box.y) / box.height * rows), c = Math.floor((x - box.x) / box.width * columns);
      if (r < 0 || c < 0 || r >= rows || c >= columns) return "";
      return `row ${trace.rows[r]}, column ${trace.columns[c]}: ${textOf(index(), r, c)}`;
    },
  });
}
