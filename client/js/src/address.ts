const octet = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
const ipv4 = new RegExp(`^${octet}(?:\\.${octet}){3}$`);

/** The groups with which an IPv6 address begins that embeds an IPv4 address in the next two: IPv4-mapped, NAT64, and a site of 6to4. */
const embedding = [[0, 0, 0, 0, 0, 0xffff], [0x64, 0xff9b, 0, 0, 0, 0], [0x2002]]; // prettier-ignore

/**
 * addressOf returns the canonical notation of an address, as nodes count it; undefined if it is none. Blanks, quotes, brackets, a port
 * and a zone are dropped. An address that embeds an IPv4 address becomes that one, so that a caller stays the same caller behind a
 * translation of addresses, and is not one with all others behind it.
 */
export function addressOf(text: string): string | undefined {
  const bare = text.trim().replace(/^"(.*)"$/s, "$1");
  const inBrackets = /^\[([^\]]*)\](?::\d{1,5})?$/.exec(bare)?.[1];
  const beforePort = /^([^:]+)(?::\d{1,5})?$/.exec(bare)?.[1];
  if (inBrackets === undefined && beforePort !== undefined) return ipv4.test(beforePort) ? beforePort : undefined;

  const [address = "", zone] = (inBrackets ?? bare).split("%", 2);
  if (zone === "" || !/^[\da-f:.]+$/i.test(address)) return undefined;
  const canonical = hostname(address);
  const groups = canonical && groupsOf(canonical);
  const form = groups && embedding.find((start) => start.every((group, i) => group === groups[i]));
  if (!form) return canonical;
  return groups.slice(form.length, form.length + 2).map((group) => `${group >> 8}.${group & 255}`).join("."); // prettier-ignore
}

/** hostname lets the parser of URLs, which every platform has, write an IPv6 address as RFC 5952 says. */
function hostname(address: string): string | undefined {
  try {
    return new URL(`http://[${address}]`).hostname.slice(1, -1);
  } catch {
    return undefined;
  }
}

/** groupsOf returns the eight groups of a canonical IPv6 address. */
function groupsOf(address: string): number[] {
  const [before = [], after = []] = address.split("::").map((part) => (part ? part.split(":") : []));
  const zeros = Array<string>(8 - before.length - after.length).fill("0");
  return [...before, ...zeros, ...after].map((group) => parseInt(group, 16));
}
