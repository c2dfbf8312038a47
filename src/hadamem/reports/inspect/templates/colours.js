// Colour tables of 256 entries [r, g, b], safe for colour-blind readers.
const STOPS = {
  viridis: ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"],
  signed: ["#40004b", "#762a83", "#9970ab", "#c2a5cf", "#e7d4e8", "#f7f7f7", "#d9f0d3", "#a6dba0", "#5aae61", "#1b7837", "#00441b"],
  factor: ["#7f3b08", "#b35806", "#e08214", "#fdb863", "#fee0b6", "#f7f7f7", "#d1e5f0", "#92c5de", "#4393c3", "#2166ac", "#053061"],
};
const ERASED = "#d55e00", KEPT = "#e3e5e8", GROWN = "#0072b2";
const LINES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#7a7a7a"];
const INK = "#1b1d21", SOFT = "#5d6470", FAINT = "#d9dce2", EMPTY = [255, 255, 255];

function rgb(hex) {
  return [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16));
}

function table(stops) {
  const colours = stops.map(rgb);
  return Array.from({ length: 256 }, (_, n) => {
    const x = n / 255 * (colours.length - 1), i = Math.min(Math.floor(x), colours.length - 2);
    return colours[i].map((c, k) => Math.round(c + (colours[i + 1][k] - c) * (x - i)));
  });
}

const TABLES = Object.fromEntries(Object.entries(STOPS).map(([name, stops]) => [name, table(stops)]));

// One half of a table for maps that lie on one side of the centre: 0 the lower, 1 the upper.
function half(colours, which) {
  return colours.map((_, n) => colours[Math.round((n + 255 * which) / 2)]);
}

function tableFor(trace) {
  if (trace.role !== "factor") return trace.map.side === "above" ? TABLES.viridis : trace.map.side === "both" ? TABLES.signed : half(TABLES.signed, 0);
  return trace.map.side === "both" ? TABLES.factor : half(TABLES.factor, trace.map.side === "below" ? 0 : 1);
}
