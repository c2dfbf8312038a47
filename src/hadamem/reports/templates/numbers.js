// Numbers: how they are written, and where the ticks of an axis are.

function shortNumber(value) {
  // Compact, for axes: 400k, 1.5M, 0.05.
  if (Number.isInteger(value) && Math.abs(value) < 10000) return minus(String(value));
  for (const [size, letter] of [[1e9, 'G'], [1e6, 'M'], [1e3, 'k']]) {
    if (Math.abs(value) >= size) return minus(Number((value / size).toPrecision(4)) + letter);
  }
  if (value !== 0 && Math.abs(value) < 1e-4) return minus(value.toExponential(1).replace('.0e', 'e'));
  return minus(String(Number(value.toPrecision(4))));
}

function longNumber(value) {
  // For read-outs: whole numbers in full, others with four significant digits.
  if (typeof value === 'string') return value;
  if (value === null || value === undefined) return 'none';
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return minus(value.toLocaleString('en-US'));
  if (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3) return minus(value.toExponential(3));
  if (Math.abs(value) >= 1000) return minus(value.toLocaleString('en-US', {maximumFractionDigits: 1}));
  return minus(String(Number(value.toPrecision(4))));
}

function minus(text) {
  return text.replace(/-/g, '\u2212');
}

function isNumber(value) {
  return typeof value === 'number' && Number.isFinite(value);
}

function linearTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((s) => s >= rough * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-6); i * step <= high + step * 1e-6; i += 1) ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}

function logTicks(low, high, count) {
  // Whole decades; with 2 and 5 between them where that leaves room; linear ticks where less than a decade is shown.
  const decades = Math.log10(high) - Math.log10(low);
  if (decades < 0.7) return linearTicks(low, high, count).filter((tick) => tick > 0);
  const factors = decades * 3 <= count ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / count));
  const ticks = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e += 1) {
    if (e % every === 0) factors.forEach((f) => ticks.push(Number((f * 10 ** e).toPrecision(12))));
  }
  return ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
}

function makeScale(values, isLog, from, to, options) {
  // From data to pixels. options: range (fixed), zero (include 0), count (of ticks), margin (share of the range left free at both ends),
  // own (a few values on a log axis are its ticks).
  const usable = values.filter((v) => isNumber(v) && (!isLog || v > 0));
  let low = usable.reduce((a, b) => Math.min(a, b), Infinity);
  let high = usable.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!usable.length) [low, high] = isLog ? [1, 10] : [0, 1];
  if (options.zero && !isLog) [low, high] = [Math.min(low, 0), Math.max(high, 0)];
  if (low === high) {
    const reach = low === 0 ? 1 : Math.abs(low) * 0.5;
    [low, high] = isLog ? [low / 2, high * 2] : [low - reach, high + reach];
  }
  const turn = isLog ? Math.log10 : (v) => v;
  let [start, end] = [turn(low), turn(high)];
  const room = (end - start) * (options.margin || 0);
  if (!(options.zero && low === 0)) start -= room;
  if (!(options.zero && high === 0)) end += room;
  if (options.range && isNumber(options.range[0]) && isNumber(options.range[1]) && (!isLog || options.range[0] > 0)) {
    [start, end] = options.range.map(turn);
  }
  const different = new Set(usable);
  const back = (v) => (isLog ? 10 ** v : v);
  return {
    at: (v) => (isNumber(v) && (!isLog || v > 0) ? from + ((turn(v) - start) / (end - start)) * (to - from) : NaN),
    ticks: isLog && options.own && different.size <= 8 ? [...different] : (isLog ? logTicks : linearTicks)(back(start), back(end), options.count),
  };
}
