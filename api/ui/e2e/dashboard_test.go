//go:build browser

package e2e

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

// hostile is a key that would run if it ever became markup.
const hostile = `<img src=x onerror=alert(1)>`

// site is a browser that looks at a cluster under load.
type site struct {
	*browser
	cluster *cluster
	met     map[string]bool // the states that inspectOnce has inspected
}

// part is a part of a story about the page.
type part struct {
	name string
	run  func(*testing.T, *site)
}

// newSite opens a browser. No node runs yet.
func newSite(t *testing.T) *site {
	s := &site{cluster: newCluster(t), met: map[string]bool{}}
	s.browser = openBrowser(t)
	s.look(1440, 900, "light")
	return s
}

// play tells a story. A part that fails ends it.
func (s *site) play(t *testing.T, story ...part) {
	for _, p := range story {
		if !t.Run(p.name, func(t *testing.T) {
			s.browser.t, s.cluster.t = t, t
			p.run(t, s)
		}) {
			s.shot("failed-" + p.name)
			t.Fatalf("the page says:\n%s\ntroubles: %q", s.text("body"), s.trouble())
		}
		s.browser.t, s.cluster.t = t, t
	}
}

// TestDashboard clicks through the page from the first node's start on.
func TestDashboard(t *testing.T) {
	needBrowser(t)
	t.Parallel()
	s := newSite(t)
	s.cluster.start(0)
	eventually(t, "the page is served", func() bool { return s.cluster.serves(0) })
	s.open(s.cluster.admin(0) + "/ui")
	s.play(t, part{"starting", showsStarting}, part{"token", asksForToken}, part{"empty", showsNothing})
	s.cluster.load()
	s.play(t, part{"rates", showsRates}, part{"arithmetic", computesRates},
		part{"regions", showsRegions}, part{"rules", filtersRules},
		part{"usage", looksUpUsage}, part{"try", triesChecks}, part{"views", fitsAllViews},
		part{"hidden", pauses}, part{"hour", keepsTheHour},
		part{"hostile", showsHostileKeys}, part{"many", boundsRows})
}

// TestDashboardWhileNodesFail looks at the page while nodes stop and come back.
func TestDashboardWhileNodesFail(t *testing.T) {
	needBrowser(t)
	t.Parallel()
	s := newSite(t)
	s.cluster.link()
	for i := range s.cluster.nodes {
		s.cluster.start(i)
	}
	for i := range s.cluster.nodes {
		s.cluster.awaitReady(i)
	}
	s.cluster.load()
	s.open(s.cluster.admin(0) + "/ui")
	s.until("the page asks for a token", formIsThere)
	s.fill("#token-text", adminToken)
	s.press("Enter")
	s.until("the page is live, with rates", live+` && `+checksRate+` > 50`)
	s.calm(t, "status of 401")
	s.play(t, part{"member", showsMemberDown}, part{"cut-off", showsCutOff}, part{"alone", showsAlone})
}

// needBrowser fails a test where there is no Chromium.
func needBrowser(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Fatal("chromium is not on PATH, so the dashboard can't be looked at")
	}
}

// visit goes to a page by its address, and waits until it is there.
func (s *site) visit(address string) {
	s.t.Helper()
	s.eval(fmt.Sprintf(`location.hash = %q; new Promise(done => setTimeout(done))`, address))
	page, _, _ := strings.Cut(strings.TrimPrefix(address, "#/"), "/")
	s.until(address+" is there",
		fmt.Sprintf(`document.querySelector('#pages a[aria-current]')?.hash === '#/%s' && location.hash === %q`, page, address))
}

// calm fails if the page has logged an error.
func (s *site) calm(t *testing.T, expected ...string) {
	t.Helper()
	list := slices.DeleteFunc(s.trouble(expected...), func(line string) bool {
		// On a busy machine the owner of the subject that is looked up may not answer in time.
		return strings.Contains(line, "status of 503") && strings.Contains(line, "/v1/usage")
	})
	if len(list) > 0 {
		t.Errorf("the page logged %q", list)
	}
}

const checksRate = `Number(document.getElementById('checks-rate').innerText.replaceAll(',', ''))`

// showsStarting looks at a node that waits for two others to found a cluster with.
func showsStarting(t *testing.T, s *site) {
	s.until("the page asks for a token", formIsThere)
	s.fill("#token-text", adminToken)
	s.press("Enter")
	s.until("it says that the node is starting",
		`/^n1 is starting and decides no checks yet: waiting for \S+, \S+ \(1 of 3 found\)[^]*It has found no other node so far/.test(document.getElementById('notices').innerText)`)
	s.until("it is not called cut off",
		`!/cut.off/.test(document.body.innerText) && /view starting/.test(document.getElementById('facts').innerText)`)
	s.until("the page is live", live)
	s.cluster.start(1)
	s.until("another node is found",
		`/waiting for [^ ,]+ \(2 of 3 found\)[^]*Found so far: n2/.test(document.getElementById('notices').innerText)`)
	s.visit("#/nodes")
	s.until("the page of the nodes says so", `/2 found so far/.test(document.getElementById('members-note').innerText)`)
	s.inspectPages("starting")
	s.cluster.start(2)
	for i := range s.cluster.nodes {
		s.cluster.awaitReady(i)
	}
	s.until("nothing is wrong any more", `document.getElementById('notices').innerText === ''`)
	s.load(func() { s.click("#token-forget") })                    // it loads the page anew
	s.calm(t, "status of 401", "status of 503", "/v1/rules/login") // it has no rules yet
}

// longerThanAPace waits long enough for the page to ask at least once, if it
// asks at all: it does so each second.
const longerThanAPace = `new Promise(done => setTimeout(done, 1500))`

// live is true when the page shows what is going on.
const live = `document.getElementById('pulse').className === 'pulse good' && document.getElementById('pulse-text').textContent === 'live'`

// showsAlone looks at a node whose two fellows are dead, and restarts it meanwhile.
func showsAlone(t *testing.T, s *site) {
	s.cluster.kill(1)
	s.cluster.kill(2)
	alone := `/^n1 is alone: n2 and n3 do not answer(, since [\d:]+)?. If they are dead, nobody decides for them.*Meanwhile n1 decides.*a third of each limit/.test(document.getElementById('notices').innerText)`
	s.until("it says who is missing, and what it does meanwhile", alone)
	s.until("it says whose counts these are",
		`document.getElementById('checks-note').innerText === '1 of 3 nodes, without n2 and n3' && /without n2 and n3/.test(document.getElementById('top-note').innerText)`)
	s.until("nobody is said to decide for them", `!/others decide/.test(document.body.innerText)`)
	s.until("the node still decides", checksRate+` > 5`)
	s.until("the page is live", live)
	s.inspectPages("alone")
	s.visit("#/nodes")
	s.until("both have failed", `[...document.querySelectorAll('#members .dot.bad')].length === 2`)
	s.visit("#/overview")
	s.eval(`window.ids = 0; window.watch = setInterval(() => { if (/[0-9a-f]{32}/.test(document.body.innerText)) window.ids++; }, 20)`)
	s.cluster.kill(0)
	s.until("what is shown is called old", `document.getElementById('pulse').className === 'pulse bad' &&
		document.body.classList.contains('stale') && /No answer from n1 since/.test(document.getElementById('notices').innerText)`)
	s.inspect("stale")
	s.cluster.start(0)
	s.until("it goes on by itself, and is alone again", live+` && !document.body.classList.contains('stale') && `+alone)
	if have := s.eval(`clearInterval(window.watch), window.ids`); have != 0.0 {
		t.Error("nodes are called by their IDs")
	}
	s.cluster.start(1)
	s.cluster.start(2)
	for i := range s.cluster.nodes {
		s.cluster.awaitReady(i)
	}
	s.until("all are back",
		`document.getElementById('notices').innerText === '' && document.getElementById('checks-note').innerText === 'the whole cluster, 3 nodes'`)
	s.until("with rates", checksRate+` > 50 && `+checksRate+` < 5000`)
	s.calm(t, "ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_SOCKET_NOT_CONNECTED",
		"ERR_EMPTY_RESPONSE", "ERR_INCOMPLETE_CHUNKED_ENCODING", "503", "/v1/usage")
}

func showsNothing(t *testing.T, s *site) {
	s.until("nothing happens",
		`document.getElementById('checks-rate').innerText === '0' && document.getElementById('refused-rate').innerText === '0'`)
	s.until("nobody was refused by any node",
		`document.getElementById('top-note').innerText === 'Nobody has been refused since the nodes began: the whole cluster, 3 nodes.'`)
	s.until("all is well",
		`/^All nodes are well: all 3 answer and n\d leads/.test(document.getElementById('health').innerText.trim())`)
	s.inspectPages("empty")
	s.calm(t)
}

func showsRates(t *testing.T, s *site) {
	s.until("there are checks a second", checksRate+` > 50`)
	first := s.text("#checks-rate")
	s.until("they change", fmt.Sprintf(`document.getElementById('checks-rate').innerText !== %q`, first))
	s.until("somebody is refused", `document.getElementById('refused-rate').classList.contains('refusing')`)
	s.until("there are ways to decide", `['owner', 'lease', 'forward', 'list'].every(way =>
		[...document.querySelectorAll('#ways li:not(.zero)')].some(li => li.innerText.includes(way)))`)
	s.until("lines are drawn",
		`document.querySelector('#checks-chart path:last-child').getAttribute('d').split('L').length > 2`)
	s.until("all nodes tell theirs",
		`document.getElementById('checks-note').innerText === 'the whole cluster, 3 nodes'`)
	s.visit("#/rules")
	s.until("rules have rates",
		`[...document.querySelectorAll('#rules-list tr')].filter(r => parseFloat(r.cells[1].innerText) > 0).length >= 5`)
	s.visit("#/nodes")
	s.until("each node has its own",
		`document.querySelectorAll('#members tr').length === 3 && [...document.querySelectorAll('#members tr')].every(r => parseFloat(r.cells[3].innerText) > 0)`)
	if have := s.text("#facts"); !strings.Contains(have, "n1") || !strings.Contains(have, "connected") {
		t.Errorf("have %q", have)
	}
	if have := s.text("#members"); strings.Count(have, "leader") != 1 || strings.Count(have, "voter") != 2 {
		t.Errorf("have %q", have)
	}
	s.visit("#/overview")
	s.calm(t)
}

func showsHostileKeys(t *testing.T, s *site) {
	s.visit("#/overview")
	refuse := func(what, key, expression string) {
		t.Helper()
		eventually(t, what, func() bool {
			s.cluster.refuse(1, key) // more often than any other
			return s.eval(expression) == true
		})
	}
	refuse("the key is among those refused most", hostile,
		fmt.Sprintf(`[...document.querySelectorAll('#top a')].some(a => a.textContent === %q)`, hostile))
	s.click(`#top a[href*="onerror"]`)
	s.until("its usage is shown",
		fmt.Sprintf(`document.getElementById('subject-result')?.innerText.includes(%q)`, hostile))
	long := "\u202e" + strings.Repeat("long", 200)
	s.visit("#/overview")
	refuse("a long one is cut, and what turns it around is not kept", long,
		`[...document.querySelectorAll('#top a')].some(a => /^\uFFFDlong.{74}…$/.test(a.textContent))`)
	s.look(390, 844, "light")
	expect.Equal(t, s.eval(`document.documentElement.scrollWidth`), 390.0, "they make the page pixels wide")
	s.look(1440, 900, "light")
	expect.Equal(t, s.eval(`document.querySelectorAll('main img, main script').length`), 0.0,
		"elements were made of it")
	s.calm(t)
}

func filtersRules(t *testing.T, s *site) {
	s.visit("#/rules")
	s.fill("#rules-filter", "LOG")
	s.until("only what fits is listed",
		`document.querySelectorAll('#rules-list tr').length === 1 && document.querySelector('#rules-list a').textContent === 'login'`)
	s.fill("#rules-filter", "no such rule")
	s.until("nothing is listed", `document.querySelectorAll('#rules-list tr').length === 0`)
	s.fill("#rules-filter", "")
	s.until("all are listed", `document.querySelectorAll('#rules-list tr').length === 7`)
	s.calm(t)
}

func looksUpUsage(t *testing.T, s *site) {
	for range 3 {
		s.cluster.check(2, `{"rule":"login","key":"198.18.0.1"}`)
	}
	s.visit("#/subjects")
	s.until("there are rules", `document.querySelectorAll('#subject-rule option').length === 7`)
	s.choose("#subject-rule", "login")
	s.fill("#subject-keys input", "198.18.0.1")
	s.click("#subject button")
	s.until("it has an address", `location.hash === '#/subjects/login/198.18.0.1'`)
	s.until("the count is shown", `/3 of 5 requests/.test(document.getElementById('subject-result')?.innerText)`)
	s.cluster.check(0, `{"rule":"login","key":"198.18.0.1"}`)
	s.until("it goes on", `/4 of 5 requests/.test(document.getElementById('subject-result')?.innerText)`)
	if have := s.text("#subject-result"); !strings.Contains(have, "owned by n") ||
		!strings.Contains(have, "sliding-window-log") {
		t.Errorf("have %q", have)
	}
	s.choose("#subject-rule", "chat")
	expect.Equal(t,
		s.eval(`[...document.querySelectorAll('#subject-keys label')].map(l => l.innerText.trim()).join()`),
		"tenant,endpoint", "the fields")
	s.fill("#subject-keys input[name=tenant]", "acme")
	s.fill("#subject-keys input[name=endpoint]", "/chat/completions")
	s.click("#subject button")
	s.until("it has an address", `location.hash === '#/subjects/chat/acme/%2Fchat%2Fcompletions'`)
	s.until("a key of two values is found", `/acme · .chat/.test(document.getElementById('subject-result')?.innerText)`)
	s.calm(t)
}

func triesChecks(t *testing.T, s *site) {
	result := func(what, pattern string) {
		t.Helper()
		s.until(what, fmt.Sprintf(`new RegExp(%q, 's').test(document.getElementById('try-result').innerText)`, pattern))
	}
	s.visit("#/document")
	s.until("there are rules", `document.querySelectorAll('#try-rule option').length === 7`)
	s.fill("#try-attributes", "ip=198.18.0.2\nendpoint=/login")
	s.click("#try button")
	result("allowed", "^Allowed.*would get 200.*Nothing was taken.*login.*4 of 5")
	s.click("#try button")
	result("nothing was taken", "4 of 5")
	s.fill("#try-cost", "6")
	s.click("#try button")
	result("refused", "^Refused.*would get 429.*never.*refuses")
	s.fill("#try-cost", "-1")
	s.click("#try button")
	result("a cost that is none", "whole number")
	s.fill("#try-cost", "")
	s.fill("#try-attributes", "ip=192.0.2.7")
	s.click("#try button")
	result("denied", "^Refused.*would get 403.*The deny list refuses this.*denied.*by a list of the document")
	s.fill("#try-attributes", "nonsense")
	s.click("#try button")
	result("no attributes", "nonsense. is not name=value")
	s.calm(t)
	s.click("#try input[value=key]")
	s.choose("#try-rule", "login")
	s.fill("#try-keys input", "198.18.0.3")
	s.click("#try-take")
	s.click("#try button")
	result("taken", "^Allowed.*was taken.*4 of 5")
	s.click("#try button")
	result("taken again", "^Allowed.*was taken.*3 of 5")
	s.click("#try input[value=limits]")
	s.fill("#try-key", "user-42")
	s.fill("#try-limits", "7/1m\n100/day")
	s.click("#try button")
	result("limits of its own", "^Allowed.*was taken.*6 of 7.*inline/requests/1m.*99 of 100")
	s.fill("#try-limits", "7 a minute")
	s.click("#try button")
	result("no limit", "7 a minute. is not a limit such as 5/1m")
	s.click("#try-take")
	s.calm(t)
	s.keepsOnly(t, adminToken)
}

func pauses(t *testing.T, s *site) {
	s.visit("#/overview")
	hide := func(hidden bool) {
		s.eval(fmt.Sprintf(`Object.defineProperty(document, 'hidden', {value: %v, configurable: true}); document.dispatchEvent(new Event('visibilitychange'))`, hidden))
	}
	hide(true)
	s.until("it says so", `document.getElementById('pulse-text').textContent === 'paused'`)
	s.eval(`new Promise(done => setTimeout(done, 500))`) // let requests in flight finish
	before := len(s.sent())
	s.eval(longerThanAPace)
	if more := s.sent()[before:]; len(more) > 0 {
		t.Errorf("nobody looks, and it asks %q", more)
	}
	hide(false)
	s.until("it goes on", `document.getElementById('pulse-text').textContent === 'live'`)
	s.until("with rates", checksRate+` > 50`)
	s.calm(t)
}

// keepsTheHour loads the page anew: the nodes know what happened before. There
// is something to draw only after a minute or two, which is what -pictures
// waits for; TestStates shows what is drawn then.
func keepsTheHour(t *testing.T, s *site) {
	known := `/^(The first minute is not over yet|The whole cluster|Of n|Nothing of n)/.test(document.getElementById('hour-note').innerText)`
	if *pictures != "" {
		known = `/^(The whole cluster|Of n|Nothing of n)/.test(document.getElementById('hour-note').innerText) && document.querySelector('#hour-chart path:nth-child(2)').getAttribute('d').includes('L')`
	}
	s.until("it is there", known)
	s.reload()
	s.until("it is still there", known)
	s.until("all nodes tell theirs", `import('./node.js').then(({get}) => get('v1/history')).then(h =>
		h.nodes.map(n => n.name + ' ' + n.answered).sort().join() === 'n1 true,n2 true,n3 true' && h.step_ms === 60000)`)
	s.until("the page is live, with rates", live+` && `+checksRate+` > 50`)
	s.calm(t)
}

func showsMemberDown(t *testing.T, s *site) {
	s.cluster.kill(2)
	s.until("it is shown", `/n3 does not answer/.test(document.getElementById('notices').innerText)`)
	s.until("the others go on",
		`document.getElementById('checks-note').innerText === '2 of 3 nodes, without n3' && `+checksRate+` > 30`)
	s.visit("#/nodes")
	s.until("it has failed", `/n3[^]*failed/.test(document.getElementById('members').innerText)`)
	s.until("the others take over", `document.querySelector('#members tr:last-child').cells[2].innerText === '–'`)
	s.inspectPages("down")
	s.cluster.start(2)
	s.cluster.awaitReady(2)
	s.visit("#/overview")
	s.until("it is back",
		`document.getElementById('notices').innerText === '' && document.getElementById('checks-note').innerText === 'the whole cluster, 3 nodes'`)
	outage := `n3 failed at [\d:]+( yesterday)?, back at [\d:]+( yesterday)? \(.*s\)`
	s.until("the outage is an event of the day",
		fmt.Sprintf(`/%s/.test(document.getElementById('events').innerText)`, outage))
	s.visit("#/nodes")
	s.until("and stands at the node",
		fmt.Sprintf(`/Last unwell: %s.*\d outages? in the last day/.test(document.getElementById('members').innerText)`, outage))
	s.visit("#/overview")
	s.calm(t, "/v1/usage") // of a subject that n3 owned
}

// showsCutOff looks at a node that is cut off while all live, and at the others.
func showsCutOff(t *testing.T, s *site) {
	s.cluster.links.Cut(s.cluster.ip(0))
	s.until("it says from whom",
		`/^n1 is alone: n2 and n3 do not answer.*if only the network is, they go on without n1/.test(document.getElementById('notices').innerText)`)
	s.until("it says whose counts these are",
		`document.getElementById('checks-note').innerText === '1 of 3 nodes, without n2 and n3'`)
	s.inspectPages("cut-off")
	s.visit("#/rules/login")
	s.push("#rule-shadow-switch")
	s.push("#confirm-yes")
	s.until("rules can't be written, and it says why",
		`document.getElementById('confirm').open && /no leader|majority/.test(document.getElementById('confirm-error').innerText)`)
	s.inspectOnce("dialog-cut-off")
	s.press("Escape")

	s.open(s.cluster.admin(1) + "/ui")
	s.until("the page asks for a token", formIsThere)
	s.signIn(adminToken)
	s.until("the others say who is missing",
		`/^n1 does not answer.*The others decide for it/.test(document.getElementById('notices').innerText)`)
	s.cluster.links.Mend(s.cluster.ip(0))
	s.until("all are back",
		`document.getElementById('notices').innerText === '' && document.getElementById('checks-note').innerText === 'the whole cluster, 3 nodes'`)
	s.open(s.cluster.admin(0) + "/ui")
	s.until("the node that was cut off says so, too", `document.getElementById('notices').innerText === ''`)
	s.calm(t, "status of 401", "status of 503", "status of 504", "/v1/usage")
}

func boundsRows(t *testing.T, s *site) {
	var doc strings.Builder
	doc.WriteString("version: 1\nrules:\n")
	for i := range 1000 {
		fmt.Fprintf(&doc,
			"  - {name: \"rule <b>%d</b>\", key: [ip], match: {n: \"%d\"}, limits: [{limit: 5, per: 1m}]}\n",
			i, i)
	}
	s.cluster.awaitReady(0)
	s.cluster.put(doc.String())
	s.visit("#/rules")
	s.until("a few of them are listed",
		`document.querySelectorAll('#rules-list tr').length === 25 && /1,000 in force/.test(document.getElementById('rules-note').innerText)`)
	s.fill("#rules-filter", "<b>777<")
	s.until("the others can be found",
		`document.querySelectorAll('#rules-list tr').length === 1 && document.querySelector('#rules-list a').textContent === 'rule <b>777</b>'`)
	expect.Equal(t, s.eval(`document.querySelectorAll('main tbody b').length`), 0.0, "elements were made of names")
	s.calm(t, "ERR_CONNECTION_REFUSED", "503", "/v1/usage") // of a deleted rule
}
