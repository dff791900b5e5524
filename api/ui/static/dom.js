// Elements. Whatever text comes from a node goes through here, and becomes a text node or the value of an attribute of
// ours: never markup.

// make returns an element with attributes and children; children are elements or texts.
export function make(tag, attributes, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) e.setAttribute(name, value);
  e.append(...children.filter((child) => child !== null && child !== undefined));
  return e;
}

export const byId = (id) => document.getElementById(id);

// offer fills a select with options, each a value and perhaps a text, and keeps what a person has chosen.
export function offer(select, options) {
  const chosen = select.value;
  select.replaceChildren(...options.map(([value, text = value]) => make('option', { value }, shown(text))));
  if (options.some(([value]) => value === chosen)) select.value = chosen;
}

// setText changes a text only when it is another one: what a person has marked stays marked.
export function setText(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

export function setClass(e, name) {
  if (e.className !== name) e.className = name;
}

// keyed keeps a child of parent for each item, by its key, in the order of items. Children stay the same elements from
// call to call, so that focus and selection do.
export function keyed(parent, items, keyOf, create, update) {
  const kept = parent.kept ?? (parent.kept = new Map());
  const wanted = new Set(items.map(keyOf));
  for (const [key, e] of kept) {
    if (!wanted.has(key)) {
      e.remove();
      kept.delete(key);
    }
  }
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    let e = kept.get(key);
    if (!e) kept.set(key, (e = create(item)));
    if (e === place) place = place.nextSibling;
    else parent.insertBefore(e, place);
    update(e, item);
  }
}

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat('en', { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const short = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });

export const number = (n) => whole.format(n);

// rate writes something a second; – is not known.
export function rate(n) {
  if (n === null || n === undefined) return '–';
  if (n === 0) return '0';
  if (n < 0.05) return '<0.1';
  if (n < 9.95) return tenth.format(n);
  return n < 99999.5 ? whole.format(n) : short.format(n);
}

export function percent(part, all) {
  if (!all || !part) return '0 %';
  const p = (100 * part) / all;
  return p < 0.1 ? '<0.1 %' : `${p < 9.95 ? tenth.format(p) : whole.format(p)} %`;
}

// span writes a duration, rounded up.
export function span(ms) {
  if (ms < 1000) return `${Math.ceil(ms)} ms`;
  const s = Math.ceil(ms / 1000);
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} m ${s % 60} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} m`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

// noEnd is what nodes write in place of the end of a block that has none.
export const noEnd = 253402300799999;

const longest = 80; // characters of a name as it is shown
const unseen = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu; // what would not be seen, or turn the text around

// shown is a name as a person can read it: not for asking with.
export function shown(name, most = longest) {
  const all = [...String(name).slice(0, 4 * most).replace(unseen, '\uFFFD')];
  return all.length > most ? `${all.slice(0, most - 1).join('')}…` : all.join('');
}

// keyText writes a key for people: one value as it is, several with a separator.
export const keyText = (key) => (Array.isArray(key) ? (key.length ? shown(key.join(' · ')) : 'all') : key === '' ? '(empty)' : shown(key));

// names lists things that have a name, the first few of them.
export function names(list) {
  const all = list.map((m) => shown(m.name)).sort();
  if (all.length > 6) return `${all.slice(0, 5).join(', ')} and ${all.length - 5} more`;
  return all.length > 1 ? `${all.slice(0, -1).join(', ')} and ${all.at(-1)}` : all.join();
}
