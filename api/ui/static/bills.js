// Bills: what was admitted, by month and subject.
import { byId, make, number, offer, percent, setText, shown } from './dom.js';
import { getFile, getLarge } from './node.js';
import { moment, onSubmit, rows, subjectLink } from './parts.js';
import { ruleNamed, store } from './store.js';

const months = 13; // that can be chosen
const most = 100; // rows

let bill = null; // the one that is shown
let asked = 0; // how often; answers to earlier questions are not shown

export const bills = {
  open() {
    bill = null;
    const now = new Date();
    offer(byId('bills-month'), Array.from({ length: months }, (_, i) => [new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - i, 1)).toISOString().slice(0, 7)]));
    byId('bills-month').addEventListener('change', ask);
    byId('bills-rule').addEventListener('change', ask);
    byId('bills-filter').addEventListener('input', draw);
    byId('bills-csv').addEventListener('click', save);
    onSubmit(byId('bills-form'), ask);
    offer(byId('bills-rule'), [['', 'all']]);
    ask();
  },

  heardRules() {
    offer(byId('bills-rule'), [['', 'all'], ...(store.doc.rules ?? []).filter((r) => r.usage).map((r) => [r.name])]);
  },
};

const query = (more) => `v1/usage/monthly?${new URLSearchParams({ month: byId('bills-month').value, ...(byId('bills-rule').value ? { rule: byId('bills-rule').value } : {}), ...more })}`;

async function ask() {
  const mine = ++asked;
  setText(byId('bills-note'), 'Reading…');
  try {
    const next = await getLarge(query());
    if (mine !== asked || !byId('bills-rows')) return;
    bill = next;
    bill.rows.sort((a, b) => b.cost - a.cost);
    draw();
  } catch (e) {
    if (mine === asked && byId('bills-note')) setText(byId('bills-note'), e.message);
  }
}

function draw() {
  if (!bill) return;
  const filter = byId('bills-filter').value.trim().toLowerCase();
  const list = bill.rows.filter((r) => !filter || `${[r.key ?? ''].flat().join(' · ')} ${r.rule} ${r.unit}`.toLowerCase().includes(filter));
  const sums = new Map();
  for (const r of list) sums.set(r.unit, (sums.get(r.unit) ?? 0) + r.cost);
  const total = [...sums].map(([unit, n]) => `${number(n)} ${shown(unit)}`).join(', ');
  setText(byId('bills-note'), `${number(list.length)} rows${total ? `: ${total}` : ''}${list.length > most ? `; the ${most} largest are shown` : ''}.${revised()}`);
  setText(byId('bills-missing'), missing());
  byId('bills-missing').hidden = !missing();
  rows(byId('bills-rows'), list.slice(0, most), (r) => JSON.stringify([r.rule, r.key, r.unit, r.other]), (r) => [
    r.other ? ['all others', make('small', {}, shown(r.rule))] : ruleNamed(r.rule) ? subjectLink(r.rule, r.key) : [shown([r.key].flat().join(' · ')), make('small', {}, shown(r.rule))],
    shown(r.unit), number(r.cost), ofMonth(r), number(r.checks),
  ], { numbers: [2, 3, 4], empty: 'Nothing was billed. Add the line “usage: monthly” to a rule to bill it.' });
}

// ofMonth says how much of a month's limit a row is, if its rule has one.
function ofMonth(row) {
  const limits = ruleNamed(row.rule)?.limits;
  const limit = Array.isArray(limits) && limits.find((l) => l.per === 'month' && (l.unit ?? 'requests') === row.unit);
  return limit ? [percent(row.cost, limit.limit), make('small', {}, `of ${number(limit.limit)}`)] : '–';
}

const revised = () => (bill.revised_at ? ` It changed after it was exported, last at ${moment(Date.parse(bill.revised_at))}.` : '');

// missing says what the bill lacks: nodes of which nothing is known, and nodes whose last moments may be lost.
function missing() {
  const list = [];
  if (bill.incomplete?.length) list.push(`It is incomplete: nothing is known of ${bill.incomplete.map((n) => shown(n)).join(', ')}.`);
  for (const e of bill.estimated ?? []) list.push(`${shown(e.node)} is counted from another node’s copy: at most its last ${number(e.at_most_lost_ms)} ms are missing.`);
  return list.join(' ');
}

// save saves the month as CSV. It is fetched, because a link would send no token.
async function save() {
  try {
    const url = URL.createObjectURL(await getFile(query({ format: 'csv' })));
    const link = make('a', { href: url, download: `usage-${byId('bills-month').value}.csv` });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  } catch (e) {
    setText(byId('bills-note'), e.message);
  }
}
