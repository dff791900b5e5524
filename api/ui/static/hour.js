// The last hour, as the nodes keep it.
import { byId, names, rate, setText, shown, span } from './dom.js';
import { plot } from './chart.js';

const slots = 60;

// hour makes rates of an answer of /v1/history: one for each step, null where no node has anything.
export function hour(report) {
  const seconds = report.step_ms / 1000;
  const steps = new Map(report.steps.map((s) => [s.at_ms, s]));
  return Array.from({ length: slots }, (_, i) => {
    const step = steps.get(report.end_ms - (slots - i) * report.step_ms);
    if (!step) return null;
    return { checks: step.checks / seconds, refused: step.refused / seconds };
  });
}

const time = (ms) => (ms < 120000 ? span(ms) : `${Math.floor(ms / 60000)} minutes`);

// gaps says what is missing in an answer.
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

export function showHour(report) {
  const clock = (before) => new Date(report.end_ms - before * 60000).toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' });
  const rates = hour(report);
  plot(byId('hour-chart'), rates, ['checks', 'refused'], slots, [60, 45, 30, 15, 0].map(clock));
  const known = rates.filter(Boolean).length;
  const missing = gaps(report);
  let note = missing ? `${missing}.` : `the whole cluster${known < slots ? ', since its nodes began' : ''}`;
  if (!known) note = 'The first minute is not over yet.';
  setText(byId('hour-note'), note[0].toUpperCase() + note.slice(1));
  const most = (name) => rate(Math.max(0, ...rates.map((r) => r?.[name] ?? 0)));
  byId('hour-chart').setAttribute('aria-label', `At most ${most('checks')} checks and ${most('refused')} refusals a second`);
}
