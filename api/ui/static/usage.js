// What a subject has used of each limit, drawn.
import { keyed, keyText, make, noEnd, number, setClass, setText, shown, span } from './dom.js';

// showUsage draws an answer of /v1/usage into an element. act makes the element that acts on a limit, and free the one that acts on
// a slot.
export function showUsage(parent, usage, act, free) {
  const limits = usage.limits ?? [];
  const shares = sharesOf(usage);
  const shape = JSON.stringify([usage.rule, usage.key, limits.map((l) => l.name), shares.length > 0]);
  if (parent.shape !== shape) {
    parent.shape = shape;
    parent.replaceChildren(make('p', { class: 'who' }, make('b', { class: 'mono' }, keyText(usage.key)), make('span')), make('p', { class: 'bad-text' }), ...limits.map((l) => bar(act?.(l))), make('ul', { class: 'regions', 'aria-label': 'Shares of the regions' }));
  }
  const [who, blocked, ...bars] = parent.children;
  setText(who.children[1], ` of ${shown(usage.rule)}${usage.owner ? `, owned by ${shown(usage.owner)}` : ''}`);
  setText(blocked, blockedText(usage.blocked_until_ms));
  blocked.hidden = !usage.blocked_until_ms;
  limits.forEach((l, i) => fill(bars[i], l, free, usage.blocked_until_ms));
  const list = bars[limits.length];
  list.hidden = !shares.length;
  keyed(list, shares, (line) => line.key, () => make('li', {}, make('span', { class: 'name' }), ' ', make('small')), (item, line) => {
    setText(item.firstElementChild, line.name);
    setText(item.lastElementChild, line.text);
  });
}

// sharesOf are lines about what each region has of a global rule's limits.
export function sharesOf(usage) {
  return Object.entries(usage.regions ?? {}).sort(([a], [b]) => (a < b ? -1 : 1)).flatMap(([name, region]) => {
    if (!region.reachable) return [{ key: name, name: shown(name), text: 'not reachable from here' }];
    return (region.limits ?? []).map((l, i) => ({
      key: `${name} ${i}`, name: shown(name),
      text: [region.limits.length > 1 ? l.name : '', `share ${number(l.share)}`, `used ${number(l.own)}`, l.leased ? `leased ${number(l.leased)}` : '', l.lent ? `lent ${number(l.lent)}` : '', l.borrowed ? `borrowed ${number(l.borrowed)}` : '', `${number(l.remaining)} left`].filter(Boolean).join(' · '),
    }));
  });
}

// slotText says who holds a slot, and for how long.
export const slotText = (s) => `${shown(s.slot)}${s.n > 1 ? `, ${number(s.n)} slots` : ''}${s.who ? ` by ${shown(s.who)}` : ''}: held for ${span(s.age_ms)}, ends in ${span(s.expires_ms)} unless it is renewed`;

function showSlots(list, slots, holders, free) {
  const lines = slots.map((s) => ({ key: s.slot, text: slotText(s) }));
  if (holders > slots.length) lines.push({ key: '', text: `and ${number(holders - slots.length)} more` });
  list.hidden = !lines.length;
  keyed(list, lines, (line) => line.key, ({ key }) => make('li', {}, make('span'), ' ', key && free ? free(key) : null), (item, line) => setText(item.firstElementChild, line.text));
}

// blockedText reads both a time and a while.
function blockedText(ms) {
  if (!ms) return '';
  if (ms === noEnd) return 'Blocked without an end: every check of it is refused until somebody lifts the block.';
  const left = ms > 1e12 ? ms - Date.now() : ms;
  return left > 0 ? `Blocked for another ${span(left)}: every check of it is refused until then.` : 'Blocked until just now.';
}

const bar = (action) =>
  make('div', { class: 'limit' }, make('p', {}, make('span'), make('span')), make('div', { class: 'gauge', role: 'meter', 'aria-valuemin': '0' }, make('span')), make('p', {}, make('span', { class: 'muted' }), action), make('ul', { class: 'list slots' }));

function fill(e, l, free, blockedUntil) {
  const [line, gauge, below, slots] = e.children;
  showSlots(slots, l.slots ?? [], l.holders ?? 0, free);
  const note = below.firstElementChild;
  gauge.hidden = !!l.unlimited;
  if (l.unlimited) {
    setText(line.children[0], l.name);
    setText(line.children[1], l.unit ? `no limit of ${l.unit}` : 'no limit');
    setText(note, '');
    return;
  }
  const all = Math.max(l.share ?? l.limit, 1);
  const part = l.used / all;
  setText(line.children[0], l.name);
  setText(line.children[1], `${number(l.used)} of ${number(all)} ${l.unit}${all < l.limit ? `, the share of ${number(l.limit)}` : ''}`);
  setClass(gauge, part >= 1 ? 'gauge over' : part > 0.8 ? 'gauge near' : 'gauge');
  gauge.setAttribute('aria-label', `used of ${l.name}`);
  gauge.setAttribute('aria-valuemax', all);
  gauge.setAttribute('aria-valuenow', Math.min(l.used, all));
  gauge.firstElementChild.style.width = `${Math.min(100, 100 * part).toFixed(1)}%`;
  const window = l.window_ms ? ` in ${span(l.window_ms)}` : '';
  setText(note, `${l.algorithm}${window} · ${blockedUntil ? 'blocked' : `${number(l.remaining)} left`}${l.leased > 0 ? ` · ${number(l.leased)} leased` : ''}${l.estimated ? ' · an estimate' : ''}${l.used > 0 && blockedUntil !== noEnd ? ` · fresh again in ${span(l.reset_after_ms)}` : ''}`);
}
