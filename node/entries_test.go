package node

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

const entriesRules = `version: 1
rules:
  - {name: login, key: [ip], limits: [{limit: 5, per: 8760h, algorithm: fixed-window}]}
  - {name: tenant, key: [tenant], tiered: true}
tiers:
  free: {limits: [{limit: 9, per: 8760h, algorithm: fixed-window}]}
  gold: {limits: [{limit: 99, per: 8760h, algorithm: fixed-window}]}
default_tier: free
lists:
  deny: [{ip: 192.0.2.0/24}]
`

// ask sends a request to a plane of a node, and returns the status and the body.
func ask(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	expect.NoError(t, err)
	resp, err := http.DefaultClient.Do(r)
	expect.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	expect.NoError(t, err)
	return resp.StatusCode, string(text)
}

// entriesCluster is three nodes, and what a test asks of them.
type entriesCluster struct {
	t     *testing.T
	nodes []*Node
	next  int // node that is asked next
}

// write changes entries or rules through each node in turn, and checks the
// status and that the answer has want.
func (c *entriesCluster) write(method, path, body string, status int, want string) {
	c.t.Helper()
	n := c.nodes[c.next%len(c.nodes)]
	c.next++
	got, text := ask(c.t, method, "http://"+n.AdminAddr().String()+path, body)
	if got != status || !strings.Contains(text, want) {
		c.t.Errorf("%s %s %s: got %d %s, want %d with %s", method, path, body, got, text, status, want)
	}
}

// everywhere waits until a check has the status and want in its answer at all
// nodes, and checks that entries are the same there.
func (c *entriesCluster) everywhere(what, check string, status int, want ...string) {
	c.t.Helper()
	for i, n := range c.nodes {
		process.Eventually(c.t, fmt.Sprintf("%s: node %d answers %d with %q", what, i, status, want), func() bool {
			got, text := ask(c.t, "POST", "http://"+n.DataAddr().String()+"/v1/check", check)
			for _, w := range want {
				if !strings.Contains(text, w) {
					return false
				}
			}
			return got == status
		})
	}

	process.Eventually(c.t, what+": all nodes list the same entries", func() bool {
		_, first := ask(c.t, "GET", "http://"+c.nodes[0].AdminAddr().String()+"/v1/entries", "")
		for _, n := range c.nodes[1:] {
			if _, text := ask(c.t, "GET", "http://"+n.AdminAddr().String()+"/v1/entries", ""); text != first {
				return false
			}
		}
		return true
	})
}

// TestEntriesOverThreeNodes: entries that are written at any node are in force
// at all, leave the rules' version and what is used alone, survive
// whole-document writes, sleep and wake with their tier, and end.
func TestEntriesOverThreeNodes(t *testing.T) {
	t.Parallel()
	c := &entriesCluster{t: t}
	c.nodes = startCluster(t, 3, entriesRules, func(_ int, config *Config) {
		config.DataAddr = "127.0.0.1:0"
		config.AdminAddr = "127.0.0.1:0"
	})
	const deny, byIP, byTenant = "/v1/lists/deny/entries", `{"attributes": {"ip": "203.0.113.7"}, "cost": 0}`, `{"attributes": {"tenant": "acme"}, "cost": 0}`

	c.everywhere("before", byIP, 200, `"rules_version":1`)
	for i, n := range c.nodes {
		if status, text := ask(t, "POST", "http://"+n.DataAddr().String()+"/v1/check",
			`{"attributes": {"ip": "203.0.113.7"}}`); status != 200 {
			t.Fatalf("node %d: got %d %s, want 200", i, status, text)
		}
	}
	c.write("POST", deny, `{"ip": "203.0.113.7", "for": "24h", "note": "incident"}`, 200, `"entries_version":1}`)
	c.everywhere("denied", byIP, 403, `"code":"denied"`, `"rules_version":1`)
	// it replaces the end and the note
	c.write("POST", deny, `{"ip": "203.0.113.7", "note": "again"}`, 200, `"note":"again"`)
	c.write("PUT", "/v1/subjects/tenant/acme", `{"tier": "gold"}`, 200, `"entries_version":3}`)
	c.everywhere("another tier", byTenant, 200, `"limit":99`, `"rules_version":1`)
	c.write("POST", "/v1/blocks", `{"rule": "login", "key": "203.0.113.9", "for": "1h"}`, 200, `"entries_version":4}`)
	c.everywhere("blocked", `{"rule": "login", "key": "203.0.113.9", "cost": 0}`, 429, `"remaining":0`)
	c.write("DELETE", deny, `{"ip": "192.0.2.0/24"}`, 409, `"code":"in-document"`)
	c.write("DELETE", deny, `{"ip": "192.0.2.0/24"}`, 409, `"line":10`)

	// A write of the whole document touches no entry. Without its tier, one sleeps.
	less := strings.Replace(entriesRules,
		"  gold: {limits: [{limit: 99, per: 8760h, algorithm: fixed-window}]}\n", "", 1)
	c.write("PUT", "/v1/rules", less, 200, `"version":2`)
	c.everywhere("asleep", byTenant, 200, `"limit":9,`, `"rules_version":2`)
	c.everywhere("still denied", byIP, 403, `"rules_version":2`)
	for _, n := range c.nodes {
		_, text := ask(t, "GET", "http://"+n.AdminAddr().String()+"/v1/entries?asleep=true", "")
		var page struct{ Entries []json.RawMessage }
		if err := json.Unmarshal([]byte(text), &page); err != nil || len(page.Entries) != 1 ||
			!strings.Contains(text, "acme") {
			t.Errorf("asleep: got %s, %v; want acme alone", text, err)
		}
	}
	c.write("PUT", "/v1/rules", entriesRules, 200, `"version":3`)
	c.everywhere("awake again", byTenant, 200, `"limit":99`, `"rules_version":3`)

	// What was used before and beside an entry stays, whichever node counts it.
	c.write("DELETE", deny, `{"ip": "203.0.113.7"}`, 200, `"note":"again"`)
	c.write("DELETE", deny, `{"ip": "203.0.113.7"}`, 404, `"code":"not-found"`)
	c.everywhere("removed", byIP, 200, `"used":3`)
	c.write("DELETE", "/v1/blocks", `{"rule": "login", "key": "203.0.113.9"}`, 200, `"entry":{`)
	c.everywhere("unblocked", `{"rule": "login", "key": "203.0.113.9", "cost": 0}`, 200, `"used":0`)

	// An entry ends by itself, at each node.
	c.write("POST", deny, `{"ip": "203.0.113.8", "for": "5s"}`, 200, `"until":"`)
	c.everywhere("for a while", `{"attributes": {"ip": "203.0.113.8"}, "cost": 0}`, 200)
	process.Eventually(t, "what has ended is gone from the list", func() bool {
		_, text := ask(t, "GET", "http://"+c.nodes[0].AdminAddr().String()+"/v1/entries?kind=deny", "")
		return strings.Contains(text, `"entries":[]`)
	})
}

// Commands about many keys count those of all nodes, at any node.
func TestRedisKeysOverThreeNodes(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t, 3, exactRules(3), func(_ int, c *Config) { c.RedisAddr = "127.0.0.1:0" })
	names := ""
	for i := range 60 { // so that each node owns some
		name := fmt.Sprint(" key", i)
		expect.Equal(t, dialRedis(t, nodes[i%3]).ask("CL.THROTTLE"+name+" 4 5 18000"), "[0 5 4 -1 3600]", "%s", name)
		names += name
	}
	for i, n := range nodes {
		expect.Equal(t, dialRedis(t, n).ask("EXISTS"+names+" none"), "60", "node %d: EXISTS", i)
	}
	expect.Equal(t, dialRedis(t, nodes[1]).ask("DEL none"+names+names), "60", "DEL")
	for i, n := range nodes {
		expect.Equal(t, dialRedis(t, n).ask("EXISTS"+names), "0", "node %d: EXISTS after DEL", i)
	}
}
