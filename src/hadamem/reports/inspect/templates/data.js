// The recording: bytes from base64 and deflate to typed arrays.
const ARRAYS = { i1: Int8Array, u1: Uint8Array, u2: Uint16Array, f4: Float32Array };

async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed.data), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new ARRAYS[packed.packed](await new Response(stream).arrayBuffer());
}

async function unpackAll(node) {
  if (node === null || typeof node !== "object") return node;
  if (node.packed) return unpack(node);
  const entries = await Promise.all(Object.entries(node).map(async ([key, value]) => [key, await unpackAll(value)]));
  return Array.isArray(node) ? entries.map(entry => entry[1]) : Object.fromEntries(entries);
}

const ORDERS = 4;            // of magnitude, below the largest value, that colours can tell apart

// What the reader has chosen.
const chosen = { step: 0, playing: false, speed: 10, scale: "auto", epsilon: 1, relative: false, head: 0 };

// One value of a map: row t of `width` numbers, its i-th.
function valueAt(map, t, i, width) {
  const q = map.data[t * width + i];
  return map.centre + q * Math.abs(q) * map.scale[t];
}

// How colours are spread at row t: the distance from the centre at which they end, and whether they count orders of magnitude.
// own: the map shows a single step.
function spreadOf(map, t, own) {
  if (chosen.scale === "log") return { reach: map.most, log: true };
  const single = chosen.scale === "step" || (own && chosen.scale === "auto");
  return { reach: single ? map.own[t] : map.whole, log: false };
}

// Place in a colour table, 0 to 255, of the byte q in row t.
function shade(map, t, q, spread) {
  let x = q * Math.abs(q) * map.scale[t] / spread.reach;
  if (spread.log) x = Math.sign(x) * Math.max(0, 1 + Math.log10(Math.abs(x)) / ORDERS);
  const place = map.side === "both" ? (x + 1) / 2 : map.side === "below" ? x + 1 : x;
  return Math.max(0, Math.min(255, Math.round(255 * place)));
}

function number(x, digits = 3) {
  if (!Number.isFinite(x)) return "–";
  if (Math.abs(x) >= 1e30) return x > 0 ? "∞" : "-∞";
  const size = Math.abs(x);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return x.toExponential(1).replace(".0e", "e").replace("e+", "e").replaceAll("-", "−");
  return String(Number(x.toPrecision(digits))).replace("-", "−");
}
