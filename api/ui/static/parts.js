// Parts that several pages have.
import { keyed, keyText, make, setClass, setText, shown } from './dom.js';
import { subjectAddress } from './address.js';
import { store } from './store.js';

// button returns a button that calls act.
export function button(text, act, attributes) {
  const b = make('button', { type: 'button', ...attributes }, text);
  b.addEventListener('click', act);
  return b;
}

// onSubmit calls act when a form is sent, and never lets the browser send it.
export function onSubmit(form, act) {
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    act(form);
  });
}

// keepDraft keeps what a person types into a field until it is applied or discarded, even while other pages are looked at. textOf
// returns the text that it began with.
export function keepDraft(field, what, textOf) {
  const address = location.hash;
  field.addEventListener('input', () => {
    if (field.value === textOf()) store.drafts.delete(address);
    else store.drafts.set(address, { what, text: field.value });
  });
}

// discardDraft forgets what was typed at this page.
export const discardDraft = () => store.drafts.delete(location.hash);

// rows keeps a table's rows. cells makes the texts or elements of an item's row; numbers are the places of those with numbers.
// A table without rows says why.
export function rows(body, items, keyOf, cells, { numbers = [], empty = 'Nothing.' } = {}) {
  const table = body.closest('table');
  let note = table.nextElementSibling;
  if (!note?.classList.contains('empty')) table.after((note = make('p', { class: 'empty' })));
  table.hidden = !items.length;
  note.hidden = items.length > 0;
  setText(note, empty);
  keyed(body, items, keyOf, () => make('tr'), (row, item) => {
    const list = cells(item);
    while (row.cells.length < list.length) row.append(make('td', numbers.includes(row.cells.length) ? { class: 'num' } : {}));
    list.forEach((content, i) => fill(row.cells[i], content));
  });
}

// fill puts a text or elements into an element, only if it shows something else: what has the focus keeps it. With null, what is
// there stays.
function fill(e, content) {
  if (content === null) return;
  const next = make('div', {}, ...[content].flat());
  next.normalize();
  if (next.childNodes.length === e.childNodes.length && [...next.childNodes].every((n, i) => n.isEqualNode(e.childNodes[i]))) return;
  e.replaceChildren(...next.childNodes);
}

// subjectLink leads to the page of a subject.
export function subjectLink(rule, key, withRule = true) {
  const link = make('a', { href: subjectAddress(rule, [key].flat()), class: 'mono', dir: 'auto' }, keyText(key));
  return withRule ? [link, make('small', {}, shown(rule))] : link;
}

// say shows a text in an element, as an error or not.
export function say(e, text, kind = 'muted') {
  setText(e, text);
  setClass(e, kind);
}

// clock writes a time of the last day, to the second.
export function clock(ms) {
  const then = new Date(ms);
  const text = then.toLocaleTimeString('en-GB');
  return then.toDateString() === new Date().toDateString() ? text : `${text} yesterday`;
}

// moment writes a time for people: the hour of today, else the day, too.
export function moment(ms) {
  const then = new Date(ms);
  const clock = then.toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' });
  if (then.toDateString() === new Date().toDateString()) return clock;
  return `${then.toLocaleDateString('en-GB', { day: 'numeric', month: 'short', year: 'numeric' })}, ${clock}`;
}

// time is moment as an element that says it exactly.
export const time = (ms, write = moment) => make('time', { datetime: new Date(ms).toISOString(), title: new Date(ms).toISOString() }, write(ms));

// mistakes lists what is wrong with a document.
export function mistakes(failure) {
  const list = failure.mistakes.slice(0, 20).map((m) => make('li', {}, [m.line ? `Line ${m.line}: ` : '', m.path ? `${shown(m.path)}: ` : '', shown(m.message)].join('')));
  if (failure.mistakes.length > 20) list.push(make('li', {}, `and ${failure.mistakes.length - 20} more`));
  return [make('p', { class: 'bad-text' }, list.length ? 'The node does not take this:' : failure.message), ...(list.length ? [make('ul', { class: 'list' }, ...list)] : [])];
}
