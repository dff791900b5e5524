// Addresses. Each page has one, in the fragment: what it names, such as a subject's key, never leaves the browser with it.

const names = ['overview', 'rules', 'subjects', 'document', 'lists', 'bills', 'nodes', 'regions'];

// here returns the page and the rest of the address: #/subjects/chat/acme/%2Fv1 is ['subjects', ['chat', 'acme', '/v1']].
export function here() {
  const [page, ...rest] = location.hash.replace(/^#\/?/, '').split('/').map(decode);
  return names.includes(page) ? [page, rest] : ['overview', []];
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

const address = (...parts) => `#/${parts.map(encodeURIComponent).join('/')}`;

export const ruleAddress = (name) => address('rules', name);
export const subjectAddress = (rule, key) => address('subjects', rule, ...key);
