// What is wrong with the cluster.
import { names, rate, shown, span } from './dom.js';
import { moment } from './parts.js';

// apart says of a node without authority whom it does not reach, and what it does meanwhile.
function apart(cluster, node, since) {
  const others = cluster.members.filter((m) => m.name !== node && m.state !== 'left');
  const far = others.filter((m) => !m.reachable);
  const near = others.filter((m) => m.reachable);
  const ring = cluster.members.filter((m) => m.in_ring).length;
  const share = ring > 1 ? `a ${ring === 2 ? 'half' : ring === 3 ? 'third' : `${ring}th`} of each limit` : 'the limits';
  const meanwhile = `Meanwhile ${node} decides the checks that it is asked by itself, as each rule’s on_partition says: by default within ${share}, by counters of its own. Rules can’t be changed here.`;
  if (!far.length) return `${node} has no leave to decide as an owner, though it reaches the other nodes: ${cluster.leader ? `${cluster.leader}, the leader, gives it none` : 'they have no leader'}. ${meanwhile}`;
  if (!near.length) return `${node} is alone: ${names(far)} ${far.length === 1 ? 'does' : 'do'} not answer${sinceText(far, since)}. If ${far.length === 1 ? 'it is' : 'they are'} dead, nobody decides for ${far.length === 1 ? 'it' : 'them'}; if only the network is, ${far.length === 1 ? 'it goes' : 'they go'} on without ${node}. ${meanwhile}`;
  return `${node} is cut off, with ${names(near)}: ${names(far)} can’t be reached, and without ${far.length === 1 ? 'it' : 'them'} there is no majority here. ${meanwhile}`;
}

// starting says what a node waits for.
function starting(cluster, node) {
  const others = cluster.members.filter((m) => m.name !== node);
  const found = others.filter((m) => m.state === 'alive');
  const away = others.filter((m) => m.state === 'failed');
  return [
    `${node} is starting and decides no checks yet: ${cluster.starting.replace('no cluster yet: ', '')}.`,
    found.length ? `Found so far: ${names(found)}.` : 'It has found no other node so far.',
    away.length ? `${names(away)} ${away.length === 1 ? 'is' : 'are'} missing.` : '',
  ].join(' ');
}

const wrongClock = 1000; // milliseconds

// clockText says how far a member's clock is from those of the others.
export const clockText = (m) => `${span(Math.abs(m.clock_offset_ms))} ${m.clock_offset_ms < 0 ? 'behind' : 'ahead'}`;

// sinceText says since when nodes do not answer, as far as that is known.
function sinceText(list, since) {
  const first = list.map((m) => since?.get(m.name)).filter(Boolean).sort((a, b) => a - b);
  return first.length ? `, since ${moment(first[0])}` : '';
}

// troubles are what a person should know of first, the worst first. since has when members failed, by name.
export function troubles(cluster, report, meter, since) {
  const node = report?.node ?? 'This node';
  const list = [];
  if (cluster.starting) return [['warn', 'starting', starting(cluster, node)]];
  if (cluster.view === 'cut-off') {
    list.push(['bad', 'cut-off', apart(cluster, node, since)]);
  } else {
    if (!cluster.leader) list.push(['bad', 'leader', 'The cluster has no leader: rules can’t be changed.']);
    const failed = cluster.members.filter((m) => m.state === 'failed');
    const [it, does] = failed.length === 1 ? ['it', 'does'] : ['them', 'do'];
    if (failed.length) list.push(['bad', 'failed', `${names(failed)} ${does} not answer${sinceText(failed, since)}: failed. The others decide for ${it}.`]);
    const behind = cluster.members.filter((m) => m.behind);
    if (behind.length) {
      list.push(['warn', 'behind', `${names(behind)} ${behind.length === 1 ? 'has' : 'have'} not applied what the others rely on. The others decide for ${behind.length === 1 ? 'it' : 'them'}.`]);
    }
  }
  const wrong = cluster.members.filter((m) => Math.abs(m.clock_offset_ms ?? 0) >= wrongClock);
  if (wrong.length) list.push(['warn', 'clock', `${wrong.map((m) => `The clock of ${shown(m.name)} is ${clockText(m)}`).join('. ')}. Windows and blocks end at the wrong time there: look at NTP.`]);
  const regions = cluster.regions ?? [];
  const away = regions.length > 1 ? regions.filter((r) => !r.reachable) : [];
  if (away.length) {
    const primary = away.some((r) => r.primary) ? ' Rules can’t be changed from here.' : '';
    list.push(['warn', 'regions', `${away.length === 1 ? 'The region' : 'The regions'} ${names(away)} can’t be reached: global limits stay within what each region has.${primary}`]);
  }
  const alive = new Set(cluster.members.filter((m) => m.state === 'alive').map((m) => m.id));
  const silent = (report?.nodes ?? []).filter((n) => !n.answered && alive.has(n.id));
  if (silent.length && cluster.view !== 'cut-off') list.push(['warn', 'silent', `The figures leave out ${names(silent)}, which did not answer in time.`]);
  const odd = (meter.rates?.ways.fallback ?? 0) + (meter.rates?.ways.standby ?? 0);
  if (odd > 0) list.push(['warn', 'odd', `${rate(odd)} checks a second are decided without their owner: by its standby, or as the rule’s on_partition says.`]);
  return list;
}
