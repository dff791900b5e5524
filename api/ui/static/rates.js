// Rates from counts: the difference of two reports of /v1/activity. Counts of a process begin at zero, and a node that does
// not answer is missing from the sums; so only reports of the same processes can be compared. Where they can't be, there
// is a gap, and no rate is made up.

export const ways = ['owner', 'lease', 'forward', 'standby', 'fallback', 'list', 'none'];
export const kept = 120; // readings that a history has
const tooLong = 15000; // milliseconds after which a difference is no longer news

const processes = (report) =>
  report.nodes
    .filter((n) => n.answered)
    .map((n) => `${n.id} ${n.process}`)
    .sort()
    .join();

// sums are the counts of one decision, of all ways.
const sum = (byWay) => Object.values(byWay ?? {}).reduce((a, b) => a + b, 0);

// difference is a rate in each way, of all decisions, and of those refused.
function difference(now, before, seconds) {
  const out = { checks: 0, refused: 0, shadow: 0, denied: 0, ways: {} }; // denied: refused by lists
  for (const decision of new Set([...Object.keys(now), ...Object.keys(before)])) {
    for (const way of ways) {
      const n = Math.max(0, (now[decision]?.[way] ?? 0) - (before[decision]?.[way] ?? 0)) / seconds;
      out.checks += n;
      out.ways[way] = (out.ways[way] ?? 0) + n;
      if (decision === 'refused') out.refused += n;
      if (decision === 'refused' && way === 'list') out.denied += n;
      if (decision === 'shadow-refused') out.shadow += n;
    }
  }
  return out;
}

// shrunk reports whether a count went back: a rule was removed and came again.
const shrunk = (now, before) => Object.keys(before).some((d) => sum(now[d]) < sum(before[d]));

const none = { checks: {} };

export class Meter {
  constructor() {
    this.last = null; // the report before
    this.rates = null; // the last that were known
    this.history = []; // of all checks; null is a gap
    this.rules = new Map(); // by name: {rate, smooth, history}
    this.nodes = new Map(); // by ID: checks a second
  }

  // push takes a report and returns whether rates came of it.
  push(report) {
    const before = this.last;
    this.last = report;
    const seconds = before ? (report.at_ms - before.at_ms) / 1000 : 0;
    if (before && seconds === 0 && processes(before) === processes(report)) return false; // the same one again
    if (!before || seconds <= 0 || seconds * 1000 > tooLong || processes(before) !== processes(report)) {
      this.gap();
      return false;
    }
    this.rates = difference(report.checks, before.checks, seconds);
    note(this.history, this.rates);
    this.pushRules(report, before, seconds);
    const earlier = new Map(before.nodes.map((n) => [n.id, n]));
    this.nodes.clear();
    for (const n of report.nodes) {
      const b = earlier.get(n.id);
      if (n.answered && b?.answered) this.nodes.set(n.id, Math.max(0, n.allowed + n.refused - b.allowed - b.refused) / seconds);
    }
    return true;
  }

  pushRules(report, before, seconds) {
    const earlier = new Map(before.rules.map((r) => [r.rule, r]));
    const there = new Set();
    for (const r of report.rules) {
      const b = earlier.get(r.rule) ?? none;
      there.add(r.rule);
      let rule = this.rules.get(r.rule);
      if (!rule) this.rules.set(r.rule, (rule = { rate: null, smooth: 0, history: [] }));
      rule.rate = shrunk(r.checks, b.checks) ? null : difference(r.checks, b.checks, seconds);
      rule.smooth += ((rule.rate?.checks ?? 0) - rule.smooth) / 5;
      note(rule.history, rule.rate);
    }
    for (const name of this.rules.keys()) if (!there.has(name)) this.rules.delete(name);
  }

  // gap notes that there is nothing to tell of this second.
  gap() {
    note(this.history, null);
    for (const rule of this.rules.values()) note(rule.history, null);
  }

  // pause is gap, and what comes next has nothing to be compared with.
  pause() {
    this.last = null;
    this.gap();
  }
}

function note(history, rate) {
  history.push(rate && { checks: rate.checks, refused: rate.refused, shadow: rate.shadow });
  if (history.length > kept) history.shift();
}
