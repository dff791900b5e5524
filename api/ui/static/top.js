// The subjects refused most.
import { byId, keyed, keyText, make, number, setText, shown } from './dom.js';

export const topShown = 10;

export function showTop(top, look) {
  const list = top.subjects.slice(0, topShown);
  setText(byId('top-note'), list.length ? 'Of the whole cluster, since its nodes began.' : 'Nobody has been refused.');
  keyed(byId('top'), list, (s) => JSON.stringify([s.rule, s.key]), (s) => create(s, look), (row, s) => {
    setText(row.cells[1], number(s.refused));
    setText(row.cells[2], number(s.checks));
  });
  byId('top').closest('table').hidden = !list.length;
}

function create(s, look) {
  const button = make('button', { type: 'button', class: 'link mono', title: 'Look at its usage', dir: 'auto' }, keyText(s.key));
  button.addEventListener('click', () => look(s.rule, [s.key].flat()));
  return make('tr', {}, make('td', {}, button, make('small', {}, shown(s.rule))), make('td', { class: 'num' }), make('td', { class: 'num' }));
}
