// What a change of the document changes, as the node says it.
import { make, shown } from './dom.js';

const signs = { added: '+', removed: '−', changed: '~', moved: '~' };
const most = 60; // pieces that are listed

// differences are elements that show an answer of /v1/rules/diff; nothing is set if there are none.
export function differences(d) {
  if (!d.changed) return Object.assign([make('p', {}, 'It changes nothing.')], { nothing: true });
  const pieces = d.changes.slice(0, most).map((c) => make('li', {},
    make('span', { class: `change ${c.change}` }, `${signs[c.change] ?? '~'} ${shown([c.kind, c.name].filter(Boolean).join(' '))} ${c.change}`),
    ...(c.details ?? []).map((text) => make('small', {}, shown(text, 400))),
    c.checks_last_hour ? make('small', { class: 'warn-text' }, `${c.checks_last_hour} checks in the last hour`) : null));
  if (d.changes.length > most || d.left_out) pieces.push(make('li', {}, `and ${d.changes.length - pieces.length + (d.left_out ?? 0)} more`));
  return [
    make('ul', { class: 'list summary' }, ...d.summary.map((text) => make('li', {}, shown(text, 600)))),
    make('ul', { class: 'list changes' }, ...pieces),
    ...(d.warnings ?? []).slice(0, 10).map((w) => make('p', { class: 'warn-text' }, `Line ${w.line}: ${shown(w.message, 400)}`)),
  ];
}
