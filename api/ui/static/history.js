// What was decided before, as the nodes keep it: the last hour and day by minute, the last 30 days by hour.
import { byId, make, names, number, rate, setText, shown, span } from './dom.js';
import { plot } from './chart.js';
import { get } from './node.js';
import { rows } from './parts.js';

// A span has n steps, drawn in slots of several, and marks below.
const clock = (at) => new Date(at).toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' });
const day = (at) => new Date(at).toLocaleDateString('en-GB', { day: 'numeric', month: 'short' });
const spans = {
  hour: { by: 'minute', n: 60, slots: 60, mark: clock },
  day: { by: 'minute', n: 1440, slots: 288, mark: clock },
  month: { by: 'hour', n: 720, slots: 240, mark: day },
};

// ask asks for the history of a span; rule: only of that one.
export function ask(name, rule) {
  const { by, n } = spans[name];
  return get(`v1/history?${new URLSearchParams({ by, n, ...(rule ? { rule } : {}) })}`);
}

// ratesOf makes rates of a history: one for each slot, null where no node has anything. An hour that is not over counts as far as it goes.
export function ratesOf(report, name) {
  const { n, slots } = spans[name];
  const end = Math.ceil(report.end_ms / report.step_ms) * report.step_ms;
  const out = Array.from({ length: slots }, () => null);
  for (const step of report.steps) {
    const i = Math.floor((slots * (n - (end - step.at_ms) / report.step_ms)) / n);
    if (i < 0 || i >= slots) continue;
    const sum = (out[i] ??= { ms: 0, checks: 0, refused: 0, shadow: 0 });
    sum.ms += Math.min(report.step_ms, Math.max(1, report.end_ms - step.at_ms));
    sum.checks += step.checks;
    sum.refused += step.refused;
    sum.shadow += step.shadow_refused;
  }
  return out.map((s) => s && { checks: (1000 * s.checks) / s.ms, refused: (1000 * s.refused) / s.ms, shadow: (1000 * s.shadow) / s.ms });
}

const time = (ms) => (ms < 120000 ? span(ms) : ms < 7200000 ? `${Math.floor(ms / 60000)} minutes` : `${Math.floor(ms / 3600000)} hours`);

// gaps says what is missing in a history.
export function gaps(report) {
  const silent = report.nodes.filter((n) => !n.answered);
  const most = Math.max(...report.nodes.map((n) => n.steps));
  const late = report.nodes.filter((n) => n.answered && n.steps < most - 1);
  return [
    silent.length ? `without ${names(silent)}, which ${silent.length === 1 ? 'does' : 'do'} not answer` : '',
    ...late.map((n) => (n.steps ? `of ${shown(n.name)} only the last ${time(n.steps * report.step_ms)}` : `nothing of ${shown(n.name)} yet`)).slice(0, 5),
    late.length > 5 ? `and less of ${late.length - 5} more` : '',
  ].filter(Boolean).join('; ');
}

// draw shows a history in the elements whose ids begin with prefix. second is what is drawn beside the checks.
export function draw(prefix, report, name, second = 'refused') {
  const chart = byId(`${prefix}-chart`);
  const { n, mark, slots } = spans[name];
  const rates = ratesOf(report, name).map((r) => r && { checks: r.checks, refused: r[second] });
  const marks = [1, 0.75, 0.5, 0.25, 0].map((part) => mark(report.end_ms - part * n * report.step_ms));
  if (chart.span !== name) chart.replaceChildren();
  chart.span = name;
  plot(chart, rates, ['checks', 'refused'], slots, marks);
  const known = rates.filter(Boolean).length;
  const missing = gaps(report);
  let note = missing ? `${missing}.` : `the whole cluster${known < slots ? ', as far as it was there' : ''}`;
  if (!known) note = 'The first minute is not over yet.';
  setText(byId(`${prefix}-note`), note[0].toUpperCase() + note.slice(1));
  const most = (what) => rate(Math.max(0, ...rates.map((r) => r?.[what] ?? 0)));
  chart.setAttribute('aria-label', `At most ${most('checks')} checks and ${most('refused')} refusals a second`);
}

const doors = { data: 'HTTP', envoy: 'Envoy', redis: 'Redis', admin: 'admin plane' };

const milliseconds = (ms) => (ms < 1 ? `${(1000 * ms).toFixed(0)} µs` : ms < 1000 ? `${ms.toFixed(ms < 10 ? 1 : 0)} ms` : `${(ms / 1000).toFixed(1)} s`);

// latencyText says how long answers took.
export const latencyText = (l) => (l?.checks ? `half of the answers within ${milliseconds(l.p50_ms)}, 99 % within ${milliseconds(l.p99_ms)}` : '');

// drawLatency lists how long answers took, by door.
export function drawLatency(report) {
  setText(byId('latency-note'), 'Of single checks at the nodes, without the network to them.');
  rows(byId('latency'), report.doors.filter((d) => d.checks), (d) => d.door, (d) => [doors[d.door] ?? shown(d.door), milliseconds(d.p50_ms), milliseconds(d.p99_ms), number(d.checks)], { numbers: [1, 2, 3], empty: 'No single check was asked.' });
}

// choice returns the span that a person has chosen, and calls act when it is another one.
export function choice(id, act) {
  const select = byId(id);
  select.append(...[['hour', 'hour'], ['day', 'day'], ['month', '30 days']].map(([value, text]) => make('option', { value }, text)));
  select.addEventListener('change', act);
}
