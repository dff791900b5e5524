//go:build browser

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api/ui"
	"github.com/rlnode/rlnode/internal/expect"
)

type object = map[string]any

// stage answers the page's questions as a node would that is in a state which
// three processes on one machine don't get into by themselves.
type stage struct {
	mu      sync.Mutex // guards the fields below
	answers map[string]any
	since   time.Time
	hold    chan struct{} // closed: questions are answered
	held    int           // how many questions were not answered at once
}

// show puts another state on the stage. n1 was asked, of nodes of which those
// in silent did not answer.
func (s *stage) show(cluster object, nodes int, silent ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var parts, history []object
	for i := range nodes {
		name := fmt.Sprintf("n%d", i+1)
		part := object{"name": name, "id": name, "answered": true, "process": "p", "allowed": 0,
			"refused": 0, "steps": 60}
		for _, other := range silent {
			if other == name {
				part["answered"], part["steps"] = false, 0
			}
		}
		if name == "n2" && part["steps"] == 60 {
			part["steps"] = 12
		}
		parts = append(parts, part)
	}
	for i := range 60 {
		if i < 25 || i > 30 {
			history = append(history,
				object{"at_ms": i * 60000, "nodes": 3, "checks": 60 * (300 + 4*i), "refused": 60 * 2 * i})
		}
	}
	cluster["epoch"], cluster["settled"], cluster["rules_version"] = 7, true, 3
	s.answers = map[string]any{
		"/v1/cluster": cluster,
		"/v1/history": object{"node": "n1", "step_ms": 60000, "end_ms": 3600000, "nodes": parts,
			"steps": history,
			"doors": []object{{"door": "data", "checks": 9, "p50_ms": 0.2, "p99_ms": 3.1}}},
		"/v1/top": object{"nodes": parts, "subjects": []object{
			{"rule": "login", "key": "192.0.2.7", "recent": 30, "refused": 500, "checks": 900},
			{"rule": "login", "key": "192.0.2.8", "recent": 0, "refused": 9000, "checks": 9500},
		}},
		"/v1/load": object{"sources": []object{},
			"rules": []object{{"rule": "everything", "source": "api", "factor": 0.5}}},
		"/v1/rules": object{"rules": []object{
			{"name": "login", "key": []string{"ip"}, "block": "30m", "limits": []object{{"limit": 5, "per": "15m"}}},
			{"name": "slow", "key": []string{"ip"}, "on_limit": "delay", "max_delay": "30s",
				"limits": []object{{"limit": 5, "per": "1s"}}},
			{"name": "everything", "adaptive": object{"source": "api"},
				"limits": []object{{"limit": 50000, "per": "1s"}}},
			{"name": "world", "key": []string{"tenant"}, "scope": "global", "shadow": true,
				"limits": []object{{"limit": 900, "per": "1m"}}},
		}},
		"/v1/rules/versions": object{"versions": []object{{"version": 3,
			"when": "2026-11-28T02:00:00Z", "by": "ann", "what": "document", "applied": 3}}},
		"/v1/rules/login": object{"name": "login", "key": []string{"ip"}},
		"/v1/events":      object{"node": "n1", "nodes": parts, "events": someEvents()},
		"/v1/try": object{"status": 200, "headers": object{},
			"answer": object{"allowed": true, "decided_by": "owner"}},
		"/v1/entries":     object{"entries": []object{}, "entries_version": 1},
		"/v1/entries/log": object{"changes": []object{}},
		"/v1/lists/deny":  []object{{"ip": "192.0.2.0/24", "origin": "document"}},
		"/v1/lists/allow": []object{},
		"/v1/level": object{"level": 2, "highest": 3,
			"members": []object{{"name": "n1", "id": "n1", "knows": 3, "release": "v1"}}},
		"/v1/usage": object{"rule": "login", "key": "203.0.113.1", "blocked_until_ms": 0, "limits": []object{
			{"name": "login", "algorithm": "sliding-window", "unit": "requests", "limit": 900,
				"window_ms": 60000, "used": 320, "remaining": 0, "leased": 0, "share": 300,
				"reset_after_ms": 9000},
		}, "regions": object{
			"eu": object{"reachable": true,
				"limits": []object{{"name": "login", "share": 300, "own": 300, "used": 320,
					"lent": 20, "borrowed": 0, "remaining": 0}}},
			"us": object{"reachable": false, "limits": []object{}},
		}},
		"/v1/usage/monthly": object{"month": "2026-11", "scope": "cluster",
			"incomplete": []string{"n2"},
			"estimated":  []object{{"node": "n3", "at_most_lost_ms": 1000}},
			"revised_at": "2026-11-28T02:00:00Z",
			"rows": []object{{"rule": "login", "key": "203.0.113.1", "unit": "requests",
				"cost": 1200, "checks": 1200}}},
		"/metrics":     "",
		"/v1/whoami":   object{"by": "127.0.0.1", "scopes": []string{"admin"}},
		"/v1/activity": object{"node": "n1", "nodes": parts, "rules": []object{}},
	}
}

// someEvents are what nodes log when n3 stands still, which then thinks that n1
// is away, and when a link is bad.
func someEvents() []object {
	event := func(secondsAgo int64, text string, fields object, count int, nodes ...string) object {
		return object{"at_ms": time.Now().UnixMilli() - 1000*secondsAgo, "level": "info",
			"text": text, "fields": fields, "nodes": nodes, "count": count}
	}
	return []object{
		event(1, "a node is reached through a relay", object{"name": "n2"}, 4, "n1"),
		event(2, "a node is reached directly again", object{"name": "n2"}, 3, "n1"),
		event(39, "this process did not run: it was stopped", object{"for": "39.977s"}, 1, "n3"),
		event(40, "n1 is back", object{}, 1, "n3"),
		event(40, "n3 is back", object{}, 1, "n1", "n2"),
		event(41, "n1 has failed", object{}, 1, "n3"),
		event(80, "n3 has failed", object{}, 1, "n1", "n2"),
	}
}

// answer sets one of the answers.
func (s *stage) answer(path string, body any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[path] = body
}

func (s *stage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	hold, answer := s.hold, s.answers[r.URL.Path]
	if activity, ok := answer.(object); ok && r.URL.Path == "/v1/activity" {
		ms := time.Since(s.since).Milliseconds()
		activity["at_ms"] = ms
		activity["checks"] = object{"allowed": object{"owner": ms, "none": ms / 10},
			"refused": object{"owner": ms / 20}}
	}
	body, err := json.Marshal(answer)
	select {
	case <-hold:
	default:
		s.held++
	}
	s.mu.Unlock()
	select {
	case <-hold:
	case <-r.Context().Done():
		return
	}
	if err != nil || answer == nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
}

func (s *stage) holdBack() (release func()) {
	hold := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold, s.held = hold, 0
	return func() { close(hold) }
}

// asked reports whether a question has been held back since holdBack.
func (s *stage) asked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held > 0
}

// members are n1 and others; near are those of them that n1 reaches.
func members(n int, near ...string) (list []object) {
	for i := range n {
		name := fmt.Sprintf("n%d", i+1)
		reachable := i == 0 || strings.Contains(strings.Join(near, " "), name)
		state := "failed"
		if reachable || i == n-1 { // of the last one it is not known yet
			state = "alive"
		}
		list = append(list,
			object{"name": name, "id": name, "address": fmt.Sprintf("192.0.2.%d", i+1),
				"region": "eu", "zone": "a", "state": state,
				"voter": true, "leader": false, "in_ring": true, "partitions": 4096 / n, "reachable": reachable})
	}
	return list
}

// TestStates looks at the page in states of a cluster that are hard to get into.
func TestStates(t *testing.T) {
	needBrowser(t)
	t.Parallel()
	play := &stage{since: time.Now()}
	play.holdBack()()
	files := ui.Open()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name, ok := strings.CutPrefix(r.URL.Path, "/ui/"); ok && files.Serve(w, r, name) {
			return
		}
		play.ServeHTTP(w, r)
	}))
	defer server.Close()
	b := openBrowser(t)
	b.look(1440, 900, "light")
	notice := func(what, pattern string) {
		t.Helper()
		b.until(what, fmt.Sprintf(`new RegExp(%q).test(document.getElementById('notices').innerText)`, pattern))
	}
	note := func(id, pattern string) {
		t.Helper()
		b.until("what "+id+" says",
			fmt.Sprintf(`new RegExp(%q).test(document.getElementById(%q).innerText)`, pattern, id))
	}
	const live = `document.getElementById('pulse').className === 'pulse good' && document.getElementById('pulse-text').textContent === 'live'`

	play.show(object{"view": "cut-off", "leader": "", "members": members(5, "n2")}, 5, "n3", "n4", "n5")
	b.open(server.URL + "/ui/")
	notice("with whom it is cut off, and from whom",
		"n1 is cut off, with n2: n3, n4 and n5 can’t be reached.*no majority.*by itself.*a 5th of each limit")
	note("checks-note", "^2 of 5 nodes, without n3, n4 and n5$")
	note("top-note", "without n3, n4 and n5")
	note("hour-note", "^Without n3, n4 and n5, which do not answer; of n2 only the last 12 minutes.$")
	b.until("the page is live although the cluster is not well", live)
	s := &site{browser: b}
	b.inspect("cut-off-with-another")
	s.visit("#/nodes")
	note("members-note", "3 of 5 alive as far as can be seen from here")
	s.visit("#/overview")

	play.show(object{"view": "cut-off", "leader": "n2", "members": members(3, "n2", "n3")}, 3)
	notice("that it may not decide",
		"n1 has no leave to decide as an owner, though it reaches the other nodes: n2, the leader, gives it none")
	b.inspect("no-authority")
	late := members(3, "n2", "n3")
	late[1]["clock_offset_ms"] = -12000
	play.show(object{"view": "connected", "leader": "n2", "members": late}, 3)
	notice("whose clock is wrong", "^The clock of n2 is 12 s behind. ")
	play.show(object{"view": "connected", "leader": "n2", "members": members(3, "n2", "n3")}, 3, "n3")
	notice("whose figures are missing", "^The figures leave out n3, which did not answer in time.$")
	note("checks-note", "^2 of 3 nodes, without n3$")
	b.inspect("silent")

	play.show(object{"view": "connected", "leader": "n2", "members": members(3, "n2", "n3")}, 3)
	b.until("all is well", `document.getElementById('notices').innerText === ''`)
	note("checks-note", "^the whole cluster, 3 nodes$")
	note("top-note", "^Counted since the nodes began: the whole cluster, 3 nodes.$")
	note("unmatched-rate", "^(9\\d|1\\d\\d)")
	note("unmatched-note", "since the nodes began")
	b.until("who is refused most, and how often",
		`/30\t500\t900/.test(document.getElementById('top').innerText) && /0\t9,000\t9,500/.test(document.getElementById('top').innerText)`)
	b.until("the axes have values", `[...document.querySelectorAll('#hour-chart .values span')].map(e => e.textContent).join() === '600,300,0' &&
		[...document.querySelectorAll('#checks-chart .values span')].every((e, i, all) => i === 2 ? e.textContent === '0' : parseFloat(e.textContent.replace(',', '')) > 0)`)
	if have := b.eval(`document.querySelector('#hour-chart path:nth-child(2)').getAttribute('d').match(/M/g).length`); have != 2.0 {
		t.Errorf("the line has %v parts, want 2: of six steps nothing is known", have)
	}
	b.until("the day begins with its one outage, and has what flaps once", `/^\S+\s+n3 failed at [\d:]+( yesterday)?, back at [\d:]+( yesterday)? \(40 s\); its process did not run\n[^]*n2 is reached through a relay\n[^]*7 times since/.test(document.getElementById('events').innerText) &&
		(document.getElementById('events').innerText.match(/n1 failed|n3 failed|relay|directly/g).length === 2)`)
	b.inspect("well")

	// What is rare in a cluster on one machine: bills of which something is
	// missing, a level to raise, another region.
	s.visit("#/bills")
	note("bills-missing",
		"^It is incomplete: nothing is known of n2. n3 is counted from another node’s copy: at most its last 1,000 ms are missing.$")
	note("bills-note",
		"1 rows: 1,200 requests.*It changed after it was exported, last at 28 Nov 2026|1 rows: 1,200 requests.*It changed after it was exported, last at \\d")
	b.inspect("bills-missing")
	s.visit("#/nodes")
	note("level-note", "^Level 2 is agreed on, and all nodes know 3.$")
	b.push("#level-raise")
	b.until("it says what that means",
		`/From 2 to 3\. It can’t be lowered again/.test(document.getElementById('confirm-body').innerText)`)
	b.push("#confirm-yes")
	// as the stage says
	b.until("it is raised",
		`/^The feature level is 2, by 127\.0\.0\.1\.$/.test(document.getElementById('done').innerText)`)
	s.visit("#/regions")
	play.show(object{"view": "connected", "leader": "n2", "members": members(3, "n2", "n3"), "regions": []object{
		{"name": "eu", "primary": true, "reachable": true, "members": 3, "committed": true},
		{"name": "us", "primary": false, "reachable": false, "members": 3, "committed": true, "address": "192.0.2.99"},
	}}, 3)
	notice("which region can’t be reached",
		"The region us can’t be reached: global limits stay within what each region has")
	b.until("the regions are listed",
		`/eu[^]*reachable[^]*primary[^]*us[^]*dashboard at 192\.0\.2\.99[^]*not reachable from here/.test(document.getElementById('regions-list').innerText)`)
	b.until("with shares and loans", `/eu\s+300\s+300\s+20\s+0\s+0/.test(document.getElementById('shares').innerText)`)
	b.inspect("regions")
	play.show(object{"view": "connected", "leader": "n2", "members": members(3, "n2", "n3")}, 3)
	s.visit("#/overview")
	b.until("all is well", `document.getElementById('notices').innerText === ''`)

	// The dot is green as long as the page is live, and no longer: not by an answer
	// to what it asked before it was hidden, either.
	hide := func(hidden bool) {
		b.eval(fmt.Sprintf(`Object.defineProperty(document, 'hidden', {value: %v, configurable: true}); document.dispatchEvent(new Event('visibilitychange'))`, hidden))
	}
	releaseOld := play.holdBack()
	eventually(t, "the page asks", play.asked)
	hide(true)
	b.until("it pauses",
		`document.getElementById('pulse-text').textContent === 'paused' && document.getElementById('pulse').className === 'pulse'`)
	release := play.holdBack()
	b.eval(`window.seen = []; window.watch = new MutationObserver(() => {
		const look = document.getElementById('pulse').className + ', ' + document.getElementById('pulse-text').textContent;
		if (look !== seen.at(-1)) seen.push(look);
	}); watch.observe(document.getElementById('pulse'), {attributes: true, childList: true, characterData: true, subtree: true})`)
	hide(false)
	eventually(t, "the page asks anew", play.asked)
	releaseOld()
	b.until("no answer comes",
		`document.getElementById('pulse').className === 'pulse bad' && /No answer from n1 since/.test(document.getElementById('notices').innerText)`)
	if have, _ := b.eval(`watch.disconnect(), seen.join('; ')`).(string); !strings.HasPrefix(have,
		"pulse, asking; pulse bad, no answer") {
		t.Errorf("before there was an answer it looked like %q", have)
	}
	release()
	b.until("it is live again", live)
	release = play.holdBack()
	b.eval(`window.green = 0; window.watch = setInterval(() => { if (document.body.classList.contains('stale') && document.getElementById('pulse').className.includes('good')) window.green++; }, 20)`)
	b.until("a node that hangs is noticed", `document.body.classList.contains('stale')`)
	b.inspect("hanging")
	release()
	b.until("it is live again", live)
	expect.Equal(t, b.eval(`window.green`), 0.0, "it was green times while nothing was heard")

	// A page that is loaded anew shows what the nodes know of before, as a real one answers.
	answer, err := os.ReadFile("../../admin/testdata/history.json")
	expect.NoError(t, err)
	play.answer("/v1/history", json.RawMessage(answer))
	b.reload()
	note("hour-note", "^Without n3, which does not answer.$")
	expect.Equal(t,
		b.eval(`document.querySelector('#hour-chart path:nth-child(2)').getAttribute('d')`),
		"M56 36.7L57 38.9", "the line")
}
