//go:build browser

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

// TestActions changes everything that the dashboard can change, by keyboard
// alone, on three real nodes.
func TestActions(t *testing.T) {
	needBrowser(t)
	t.Parallel()
	s := newSite(t)
	for i := range s.cluster.nodes {
		s.cluster.start(i)
	}
	for i := range s.cluster.nodes {
		s.cluster.awaitReady(i)
	}
	s.open(s.cluster.admin(0) + "/ui/#/rules/login")
	s.until("the page asks for a token", formIsThere)
	s.signIn(adminToken)
	s.play(t, part{"rule", changesRule}, part{"subject", changesSubject}, part{"slots", showsSlots},
		part{"document", changesDocument}, part{"lists", changesLists},
		part{"bills", savesBills}, part{"hostile", showsHostileTexts}, part{"scope",
			namesMissingScope}, part{"nodes", removesNode})
}

// signIn types a token in.
func (s *site) signIn(token string) {
	s.t.Helper()
	s.fill("#token-text", token)
	s.press("Enter")
	s.until("the page is live", live)
}

// ask returns the answer of the first node's admin plane, as the admin.
func (c *cluster) ask(method, path, body string) string {
	c.t.Helper()
	req, err := http.NewRequest(method, c.admin(0)+path, strings.NewReader(body))
	expect.NoError(c.t, err)
	resp, err := client.Do(req)
	expect.NoError(c.t, err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	expect.NoError(c.t, err)
	return string(answer)
}

// tells fails unless the node's answer to a GET has a text.
func (c *cluster) tells(path, want string) {
	c.t.Helper()
	if have := c.ask("GET", path, ""); !strings.Contains(have, want) {
		c.t.Errorf("%s: have %.600s, want %s", path, have, want)
	}
}

func changesRule(t *testing.T, s *site) {
	login := "name: login\nmatch: {endpoint: /login}\nkey: [ip]\nlimits:\n  - {limit: %s, per: 15m, algorithm: sliding-window-log}\nconsistency: exact\n"
	s.until("its definition is there", `document.getElementById('rule-text')?.value.includes('limit: 5')`)
	s.write("#rule-text", fmt.Sprintf(login, "-5"))
	s.push("#rule-edit button[type=submit]")
	s.refuses(t, `does not take this.*limits\[0\]\.limit`)

	s.write("#rule-text", fmt.Sprintf(login, "4"))
	s.push("#rule-edit button[type=submit]")
	s.agrees(t, `1 rule changed.*rule login.*5 → 4`, "halve it <b>now</b>", "Version 2 is in force")
	s.cluster.tells("/v1/rules/login", `"limit":4`)
	s.cluster.tells("/v1/rules/versions", `"message":"halve it \u003cb\u003enow\u003c/b\u003e","via":"dashboard"`)

	// Somebody else writes while the question is open: it is asked again, about
	// what is in force now.
	s.write("#rule-text", fmt.Sprintf(login, "3"))
	s.push("#rule-edit button[type=submit]")
	s.until("it asks",
		`document.getElementById('confirm').open && /4 → 3/.test(document.getElementById('confirm').innerText)`)
	s.cluster.ask("PUT", "/v1/rules/login", fmt.Sprintf(login, "8"))
	s.push("#confirm-yes")
	s.until("it says so, and asks again",
		`/changed meanwhile/.test(document.getElementById('confirm').innerText) && /8 → 3/.test(document.getElementById('confirm').innerText)`)
	s.push("#confirm-yes")
	s.until("it is written",
		`!document.getElementById('confirm').open && /Version 4 is in force/.test(document.getElementById('done').innerText)`)

	s.push("#rule-shadow-switch")
	s.agrees(t, "rule login.*shadow", "", "Version 5 is in force: Make login a shadow rule")
	s.until("the page says so",
		`/It refuses nothing/.test(document.getElementById('rule-shadow').innerText) && /Let it refuse/.test(document.getElementById('rule-shadow-switch').innerText)`)
	s.push("#rule-shadow-switch")
	s.agrees(t, "rule login.*shadow", "", "Version 6 is in force: Let the rule login refuse")
	s.cluster.tells("/v1/rules/login", `"limit":3`)

	s.push("#rule-edit button[type=submit]")
	s.refuses(t, "It changes nothing") // which nobody can apply

	s.write("#rule-text", fmt.Sprintf(login, "2"))
	s.visit("#/nodes")
	s.until("an edit that is left is not forgotten",
		`/Your edit of the rule login is not applied/.test(document.getElementById('notices').innerText)`)
	s.visit("#/rules/login")
	s.until("it is still there", `/limit: 2/.test(document.getElementById('rule-text').value)`)
	s.push("#rule-undo")
	s.until("it is discarded",
		`/limit: 3/.test(document.getElementById('rule-text').value) && document.getElementById('notices').innerText === ''`)

	for range 9 {
		s.cluster.check(0, `{"rule":"login","key":"203.0.113.1"}`)
	}
	s.until("somebody was refused", `!!document.querySelector('#rule-top button')`)
	s.push("#rule-top button")
	s.agrees(t, "should not have refused.*login: 3 of 3 requests", "", "A false positive of login is counted, the 1")
	s.push("#rule-top a")
	s.until("its page is there", `location.hash === '#/subjects/login/203.0.113.1'`)
	s.calm(t, "status of 401", "status of 412", "status of 422")
}

func changesSubject(t *testing.T, s *site) {
	used := func(want string) {
		t.Helper()
		s.until("it shows "+want,
			fmt.Sprintf(`document.getElementById('subject-result')?.innerText.includes(%q)`, want))
	}
	used("3 of 3 requests")
	s.push(`#subject-result button`)
	s.agrees(t, "begin anew.*login: 3 of 3 requests used", "", "limit login.*was reset")
	used("0 of 3 requests")
	for range 3 {
		s.cluster.check(0, `{"rule":"login","key":"203.0.113.1"}`)
	}
	used("3 of 3 requests")
	s.write("#adjust-cost", "2")
	s.push("#adjust button[value=give]")
	s.agrees(t, "3 of 3 requests used.*will have used 1", "", "Given to 203.0.113.1 of login: 2")
	used("1 of 3 requests")
	s.write("#adjust-cost", "1")
	s.push("#adjust button[value=take]")
	s.agrees(t, "1 of 3 requests used.*will have used 2", "", "Taken from 203.0.113.1 of login: 1")
	used("2 of 3 requests")
	s.write("#adjust-cost", "a few")
	s.push("#adjust button[value=give]")
	s.until("it says what is wrong", `/whole number/.test(document.getElementById('adjust-error').innerText)`)
	s.push("#reset-all")
	s.agrees(t, "begin anew.*login: 2 of 3", "", "Usage of 203.0.113.1 of login was reset")
	used("0 of 3 requests")

	s.pick("#act-what", "block it")
	s.pick("#act-for", "an hour")
	s.write("#act-note", "attack <i>")
	s.push("#act button")
	s.agrees(t,
		`will be in force.*block 203.0.113.1 of rule login, until .*Note: attack <i>.*There is none yet`,
		"", "In force: block 203.0.113.1 of rule login")
	s.until("it is blocked", `/Blocked for another/.test(document.getElementById('subject-result')?.innerText)`)
	s.until("the entry is listed",
		`/block 203.0.113.1 of rule login[^]*attack <i>/.test(document.getElementById('subject-entries').innerText)`)
	s.inspectOnce("subject-blocked")
	eventually(t, "another node refuses it, too",
		func() bool { return s.cluster.check(1, `{"rule":"login","key":"203.0.113.1"}`) == 429 })
	s.push("#unblock")
	s.agrees(t, "This ends now.*block 203.0.113.1", "", "Ended: block 203.0.113.1")
	s.until("it is not blocked", `document.getElementById('unblock').disabled`)
	eventually(t, "another node allows it, too",
		func() bool { return s.cluster.check(1, `{"rule":"login","key":"203.0.113.1"}`) == 200 })

	s.pick("#act-what", "deny ip=203.0.113.1")
	s.pick("#act-for", "a day")
	s.push("#act button")
	s.agrees(t, "deny ip=203.0.113.1, until ", "", "In force: deny ip=203.0.113.1")
	eventually(t, "it is denied",
		func() bool { return s.cluster.check(2, `{"attributes":{"ip":"203.0.113.1"}}`) == 403 })
	s.until("that is said first",
		`/^Denied until .*: every check of it is refused/.test(document.getElementById('subject-denied').innerText)`)
	s.push(`#subject-entries button[aria-label^="End deny"]`)
	s.agrees(t, "This ends now", "", "Ended: deny ip=203.0.113.1")

	s.until("it is denied no more", `document.getElementById('subject-denied').hidden`)
	liftsBlock(t, s)

	s.visit("#/subjects/tenant/globex")
	s.until("its tier is there", `/Tier free, the default/.test(document.getElementById('subject-tier').innerText)`)
	s.pick("#tier-name", "premium")
	s.push("#tier button")
	s.agrees(t, "subject tenant=globex, tier premium, without an end", "",
		"In force: subject tenant=globex, tier premium")
	s.until("it has the tier",
		`/Tier premium, written in an entry/.test(document.getElementById('subject-tier').innerText)`)
	s.until("and its limit", `/1,000,000 requests/.test(document.getElementById('subject-result')?.innerText)`)
	s.push(`#subject-entries button[aria-label^="End subject"]`)
	s.agrees(t, "This ends now", "", "Ended: subject tenant=globex")
	s.until("it has the tier of before",
		`/Tier free, the default/.test(document.getElementById('subject-tier').innerText)`)
	s.calm(t, "status of 429")
}

// liftsBlock lifts a block that a refusal began, and has another one begin.
func liftsBlock(t *testing.T, s *site) {
	s.cluster.ask("PUT", "/v1/rules/gate",
		`{"key":["ip"],"match":{"door":"gate"},"limits":[{"limit":1,"per":"1h"}],"block":"10m"}`)
	refuse := func() {
		t.Helper()
		eventually(t, "it is refused",
			func() bool { return s.cluster.check(0, `{"rule":"gate","key":"203.0.113.5"}`) == 429 })
	}
	refuse()
	s.visit("#/document")
	s.until("there is the rule", `/gate/.test(document.getElementById('try-rule').innerText)`)
	s.write("#try-attributes", "ip=203.0.113.5\ndoor=gate")
	s.push("#try button[type=submit]")
	s.until("a check says how long it is blocked",
		`/^Refused[^]*blocked\s+by gate for another \d+ m/.test(document.getElementById('try-result').innerText)`)

	s.visit("#/subjects/gate/203.0.113.5")
	s.until("it can be lifted", `!document.getElementById('unblock').disabled`)
	s.push("#unblock")
	s.agrees(t, "^Lift the block of 203.0.113.5 of gate.*next refusal begins another", "",
		"^The block of 203.0.113.5 of gate was lifted")
	s.until("it is not blocked", `!/Blocked for/.test(document.getElementById('subject-result').innerText)`)
	refuse()
	s.until("the page takes back what it said",
		`/was lifted, and a refusal has begun another one since/.test(document.getElementById('done').innerText)`)
	s.visit("#/overview")
	s.until("who lifted it is told",
		`/a block that a refusal began was lifted[^]*203\.0\.113\.5 of gate · by admin-token/.test(document.getElementById('events').innerText)`)
	s.cluster.ask("DELETE", "/v1/rules/gate", "")
}

// showsSlots looks at who holds the slots of a limit on requests in flight.
func showsSlots(t *testing.T, s *site) {
	s.cluster.ask("PUT", "/v1/rules/render",
		`{"key":["tenant"],"limits":[{"limit":2,"ttl":"20s","algorithm":"concurrency"}]}`)
	s.visit("#/subjects/render/acme")
	s.until("nobody holds a slot",
		`/0 of 2/.test(document.getElementById('subject-result').innerText) && document.querySelector('#subject-result .slots').hidden`)
	acquire := func() {
		t.Helper()
		resp, err := client.Post("http://"+s.cluster.ip(0)+":8080/v1/acquire", "",
			strings.NewReader(`{"rule":"render","key":"acme"}`))
		expect.NoError(t, err)
		resp.Body.Close()
	}
	acquire()
	s.until("somebody does, and for how long",
		`/1 of 2/.test(document.getElementById('subject-result').innerText) && /^[0-9a-f]{16}.*held for .*ends in \d+ s unless it is renewed/.test(document.querySelector('#subject-result .slots').innerText)`)
	s.inspectOnce("slots")
	s.push("#subject-result .slots button")
	s.agrees(t, "held for .*learns of it when it renews", "", "The slot [0-9a-f]{16} of acme of render is free")
	s.until("nobody holds one", `/0 of 2/.test(document.getElementById('subject-result').innerText)`)
	acquire()
	s.until("somebody does again", `/1 of 2/.test(document.getElementById('subject-result').innerText)`)
	s.push("#reset-all")
	s.agrees(t, "render: 1 of 2", "", "was reset")
	s.until("it is free",
		`/0 of 2/.test(document.getElementById('subject-result').innerText) && document.querySelector('#subject-result .slots').hidden`)
	s.cluster.ask("DELETE", "/v1/rules/render", "")
	s.calm(t)
}

func changesDocument(t *testing.T, s *site) {
	s.visit("#/document")
	s.until("the text is there", `document.getElementById('text').value.includes('per-address')`)
	s.until("it is the newest",
		`document.getElementById('document-note').innerText.startsWith(document.querySelector('#facts span:last-child').innerText.replace(/^rules v/, 'V'))`)
	text, _ := s.eval(`document.getElementById('text').value`).(string)
	version := s.eval(`Number(/Version (\d+)/.exec(document.getElementById('document-note').innerText)[1])`).(float64)

	s.write("#text", strings.Replace(text, "limit: 300", "limit: many", 1))
	s.push("#validate")
	s.until("it says what is wrong, and where",
		`/does not take this[^]*Line \d+: rules\[0\]\.limits/.test(document.getElementById('document-result').innerText) && document.querySelectorAll('#lines .wrong').length === 1`)
	s.inspectOnce("document-wrong")
	s.write("#text", strings.Replace(text, "limit: 300", "limit: 150", 1))
	s.push("#validate")
	s.until("it says what it changes",
		`/It is valid[^]*1 rule changed[^]*300 → 150/.test(document.getElementById('document-result').innerText)`)
	s.push("#edit button[type=submit]")
	s.agrees(t, "1 rule changed.*per-address.*300 → 150", "half", fmt.Sprintf("Version %.0f is in force", version+1))
	s.cluster.tells("/v1/rules/per-address", `"limit":150`)

	s.until("the version is listed",
		fmt.Sprintf(`/%.0f[^]*half/.test(document.querySelector('#versions tr').innerText)`, version+1))
	s.push(`#versions button[aria-label="What version ` + fmt.Sprint(int(version)+1) + ` changed"]`)
	s.until("its difference is shown",
		`/per-address changed[^]*300 → 150/.test(document.getElementById('version-diff').innerText)`)
	s.push(fmt.Sprintf(`#versions button[aria-label="Roll back to %.0f"]`, version))
	s.agrees(t, "per-address.*150 → 300", "",
		fmt.Sprintf("Version %.0f is in force, with the rules of version %.0f", version+2, version))
	s.cluster.tells("/v1/rules/per-address", `"limit":300`)
	s.until("the text is the one of before", `document.getElementById('text').value.includes('limit: 300')`)

	s.write("#try-attributes", "ip=198.18.0.2\nendpoint=/logout")
	s.push("#try button[type=submit]")
	s.until("it says which rules apply, and why others do not",
		`/per-address applies[^]*login does not apply[^]*endpoint: "\/logout" is not "\/login"/.test(document.getElementById('try-result').innerText)`)
	s.inspectOnce("try")
	s.calm(t, "status of 422")
}

func changesLists(t *testing.T, s *site) {
	s.visit("#/lists")
	s.until("the document's entries are there",
		`/document[^]*192\.0\.2\.0\/24/.test(document.getElementById('entries').innerText)`)
	for value, want := range map[string]string{"": "the value is empty",
		"user=u1":           "neither an address nor a CIDR",
		"198.51.100.300/24": "neither an address nor a CIDR"} {
		s.fill("#add-value", value)
		s.push("#add button")
		s.refuses(t, "does not take this.*lists.deny.ip: .*"+want)
	}
	s.write("#add-value", "203.0.113.77")
	s.write("#add-note", "a scanner")
	s.push("#add button")
	s.agrees(t, "deny ip=203.0.113.77, until .*Note: a scanner", "", "In force: deny ip=203.0.113.77")
	s.until("it is listed, with who and until when",
		`/entry[^]*203\.0\.113\.77[^]*a scanner[^]*admin-token/.test(document.querySelector('#entries tr').innerText)`)
	s.until("the change is in the log",
		`/deny ip=203\.0\.113\.77 added/.test(document.getElementById('log').innerText)`)
	s.push(`#entries button[aria-label^="End deny"]`)
	s.agrees(t, "This ends now.*It was written by admin-token", "", "Ended: deny ip=203.0.113.77")

	s.pick("#add-kind", "block")
	s.pick("#add-rule", "login")
	s.write("#add-keys input", "203.0.113.9")
	s.push("#add button")
	s.agrees(t, "block 203.0.113.9 of rule login", "", "In force: block 203.0.113.9 of rule login")
	s.until("it is listed", `/block/.test(document.querySelector('#entries tr').innerText)`)

	// A block of a rule that is gone sleeps, and can be ended all the same.
	document := s.cluster.ask("GET", "/v1/rules", "")
	s.cluster.ask("DELETE", "/v1/rules/login", "")
	s.until("it sleeps", `/asleep/.test(document.querySelector('#entries tr').innerText)`)
	s.inspectOnce("lists-asleep")
	s.push(`#entries button[aria-label^="End block"]`)
	s.agrees(t, "This ends now", "", "Ended: block 203.0.113.9")

	// What was chosen stays when other rules come into force.
	s.pick("#add-kind", "tier")
	s.write("#add-attribute", "tenant")
	s.write("#add-value", "initech")
	s.pick("#add-tier", "premium")
	s.until("the tiers are marked", `(document.querySelector('#add-tier option').dataset.old = 'yes') === 'yes'`)
	s.cluster.put(document)
	s.until("they are offered anew", `!document.querySelector('#add-tier option').dataset.old`)
	s.push("#add button")
	s.agrees(t, "subject tenant=initech, tier premium", "", "In force: subject tenant=initech, tier premium")
	s.push(`#entries button[aria-label^="End subject"]`)
	s.agrees(t, "This ends now", "", "Ended: subject tenant=initech")
	s.calm(t, "status of 422")
}

func savesBills(t *testing.T, s *site) {
	for range 7 {
		s.cluster.check(0, `{"attributes":{"tenant":"acme","endpoint":"/chat/x"}}`)
	}
	s.visit("#/bills")
	s.until("it is told what is missing, or nothing is billed",
		`/rows/.test(document.getElementById('bills-note').innerText)`)
	before := len(s.sent())
	s.push("#bills-csv")
	eventually(t, "the file is asked for",
		func() bool { return strings.Contains(strings.Join(s.sent()[before:], "\n"), "format=csv") })
	s.calm(t, "status of 503")
}

// showsHostileTexts puts markup wherever a person or a caller can put a text.
func showsHostileTexts(t *testing.T, s *site) {
	document := s.cluster.ask("GET", "/v1/rules", "")
	var hostileRules bytes.Buffer
	name, err := json.Marshal(hostile)
	expect.NoError(t, err)
	fmt.Fprintf(&hostileRules, `{"version":1,"tiers":{%[1]s:{"limits":[{"limit":5,"per":"1m"}]}},"default_tier":%[1]s,"lists":{"deny":[{"x":%[1]s}]},
		"rules":[{"name":%[1]s,"key":["x"],"match":{"y":[%[1]s,"a"]},"limits":[{"name":%[1]s,"limit":5,"per":"1m","unit":"u"}],"usage":"monthly"},{"name":"t","key":["x"],"tiered":true}]}`, name)
	s.cluster.ask("PUT", "/v1/rules?message="+strings.ReplaceAll(hostile, " ", "%20"), hostileRules.String())
	s.cluster.ask("POST", "/v1/lists/deny/entries", fmt.Sprintf(`{"z":%[1]s,"note":%[1]s}`, name))
	s.cluster.ask("PUT", "/v1/subjects/x/v", fmt.Sprintf(`{"tier":%[1]s,"note":%[1]s}`, name))
	for range 9 {
		s.cluster.check(0, fmt.Sprintf(`{"rule":%[1]s,"key":%[1]s,"costs":{"u":1}}`, name))
	}
	path := "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E"
	for _, page := range []string{"overview", "rules", "rules/" + path, "subjects",
		"subjects/" + path + "/" + path, "subjects/t/v", "document", "lists", "bills", "nodes",
		"regions"} {
		s.visit("#/" + page)
		s.until("it has been told something", live)
		s.eval(longerThanAPace)
		if have := s.eval(`document.querySelectorAll('main img, main script, main i:not([class]), dialog img').length`); have != 0.0 {
			t.Errorf("%s: %v elements were made of texts", page, have)
		}
		expect.Equal(t, s.eval(`document.documentElement.scrollWidth`), 1440.0, "%s: the page wide", page)
	}
	s.visit("#/lists")
	s.push(`#entries button[aria-label*="onerror"]`)
	s.agrees(t, "onerror", "", "Ended: .*onerror")
	s.visit("#/document")
	s.until("versions are there", `document.querySelectorAll('#versions button').length > 2`)
	s.push(`#versions button[aria-label^="Roll back"]`)
	s.until("the change names what it does",
		`document.getElementById('confirm').open && /onerror/.test(document.getElementById('confirm').innerText)`)
	s.press("Escape")
	s.cluster.put(document)
	s.calm(t)
}

func namesMissingScope(t *testing.T, s *site) {
	s.load(func() { s.click("#token-forget") })
	s.until("it is forgotten", formIsThere)
	s.signIn(viewerToken)
	s.visit("#/rules/login")
	s.push("#rule-shadow-switch")
	s.refuses(t, "needs a token with the scope admin; viewer has read")
	s.visit("#/subjects/login/203.0.113.1")
	s.push("#reset-all")
	s.refuses(t, "needs a token with the scope adjust; viewer has read")
	s.push("#act button")
	s.until("it refuses",
		`/scope entries or admin; viewer has read/.test(document.getElementById('confirm').innerText)`)
	s.inspectOnce("dialog-scope")
	s.push("#confirm-token")
	s.until("it asks for another token", formIsThere)
	s.signIn(adminToken)
	s.push("#act button")
	s.agrees(t, "will be in force", "", "In force: block 203.0.113.1")
	s.calm(t, "status of 401")
}

func removesNode(t *testing.T, s *site) {
	s.visit("#/nodes")
	s.until("the command to join is there",
		`/^rlnode serve --name NAME .*--join 127\.[\d.]+,127/.test(document.getElementById('join').value)`)
	s.push("#join-copy")
	s.until("it is copied, or marked", `/Copied|marked/.test(document.getElementById('join-copied').innerText)`)
	s.until("no level can be raised",
		`document.getElementById('level-raise').disabled && /no higher/.test(document.getElementById('level-note').innerText)`)
	s.until("none that lives can be removed", `[...document.querySelectorAll('#members button')].every(b => b.hidden)`)
	s.cluster.kill(2)
	s.push(`#members button[aria-label="Remove n3"]:not([hidden])`)
	s.agrees(t, "n3 at 127.*is failed.*voter", "", "n3 was removed")
	s.until("it is gone",
		`document.querySelectorAll('#members tr').length === 2 && document.getElementById('notices').innerText === ''`)
	s.calm(t)
}
