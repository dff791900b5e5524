// The subjects refused most: in the last five minutes first, then those refused most before.
import { byId, keyed, keyText, make, number, setText, shown } from './dom.js';
import { whose } from './now.js';

export const topShown = 12;

export function showTop(top, look) {
  const list = top.subjects.slice(0, topShown);
  setText(byId('top-note'), `${list.length ? 'Counted' : 'Nobody has been refused'} since the nodes began: ${whose(top.nodes)}.`);
  keyed(byId('top'), list, (s) => JSON.stringify([s.rule, s.key]), (s) => create(s, look), (row, s) => {
    [s.recent, s.refused, s.checks].forEach((n, i) => setText(row.cells[i + 1], number(n)));
  });
  byId('top').closest('table').hidden = !list.length;
}

function create(s, look) {
  const button = make('button', { type: 'button', class: 'link mono', title: 'Look at its usage', dir: 'auto' }, keyText(s.key));
  button.addEventListener('click', () => look(s.rule, [s.key].flat()));
  return make('tr', {}, make('td', {}, button, make('small', {}, shown(s.rule))), ...['num', 'num', 'wide num'].map((name) => make('td', { class: name })));
}
