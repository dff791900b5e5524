//go:build browser

package e2e

import "testing"

// showsRegions tests how the page shows regions; this cluster has only one.
func showsRegions(t *testing.T, s *site) {
	have := s.eval(`Promise.all([import('./members.js'), import('./subject.js')]).then(([members, subject]) => {
		const list = document.getElementById('regions'), out = [list.hidden];
		members.showRegions({regions: [{name: 'us', reachable: false, members: 1}, {name: 'eu', primary: true, reachable: true, members: 2}]});
		out.push(list.hidden, ...[...list.children].map(e => e.textContent), list.querySelectorAll('.dot.bad').length);
		members.showRegions({regions: [{name: 'eu', primary: true, reachable: true, members: 2}]});
		out.push(list.hidden, list.children.length);
		const away = members.troubles({view: 'connected', leader: 'n1', members: [], regions: [{name: 'eu', primary: true, reachable: false}, {name: 'us', reachable: true}]}, null, {});
		out.push(away.map(([kind, key]) => kind + ' ' + key));
		const limit = {name: 'r', share: 300, used: 320, own: 300, lent: 20, borrowed: 0, remaining: 0};
		out.push(subject.sharesOf({regions: {us: {reachable: false}, eu: {reachable: true, limits: [limit]}}}).map(l => l.name + ': ' + l.text));
		return JSON.stringify(out);
	})`)
	want := `[true,false,"eu 2 nodes · primary","us 1 node · not reachable from here",1,true,0,["warn regions"],` +
		`["eu: share 300 · used 300 · lent 20 · 0 left","us: not reachable from here"]]`
	if have != want {
		t.Errorf("have %v, want %s", have, want)
	}
}
