package admin_test

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/usage"
)

// deafPeers are peers that never answer.
type deafPeers struct{}

func (deafPeers) Call(context.Context, ring.NodeID, peer.Method, []byte) ([]byte, error) {
	return nil, peer.ErrUnreachable
}

func (deafPeers) ProcessGone(ring.NodeID) bool { return false }

// startMeteredNode starts a node that counts usage, in a cluster with members that never answer.
func startMeteredNode(t *testing.T, members ...usage.Member) *apitest.Node {
	t.Helper()
	n := startNode(t, func(c *apitest.Config) {
		m, err := usage.Open(usage.Config{Dir: t.TempDir(), Self: ring.NodeID{1}, Boot: 1,
			Name: "n1", Months: 1, Rows: 1000,
			Now: func() int64 { return time.Now().UnixNano() }, Logger: slog.New(slog.DiscardHandler)})
		expect.NoError(t, err)
		cluster := usage.NewTotals(m, deafPeers{}, func() []usage.Member { return members })
		c.Decider.(*limiter.Limiter).UseMeter(m)
		c.Months, c.Metrics = cluster, append(c.Metrics, m.Metrics)
		t.Cleanup(func() {
			if err := cluster.Close(); err != nil {
				t.Error(err)
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
	})
	monthly := strings.ReplaceAll(apitest.Rules, "    limits:", "    usage: monthly\n    limits:")
	n.UseRules(strings.Replace(monthly, "rules:\n",
		"rules:\n  - {name: not-billed, key: [user], limits: [{limit: 1000, per: 1h}]}\n", 1))
	return n
}

type monthAnswer struct {
	Month, Scope string
	Rows         []struct {
		Rule, Unit   string
		Key          any
		Cost, Checks int64
	}
	Incomplete []string
}

func TestMonthlyUsage(t *testing.T) {
	n := startMeteredNode(t)
	for _, body := range []string{
		`{"rule":"login","key":"198.51.100.7"}`,
		`{"rule":"login","key":"198.51.100.7","cost":2}`,
		`{"rule":"login","key":"198.51.100.7","cost":2,"peek":true}`,
		`{"rule":"login","key":"198.51.100.7","cost":5}`, // refused
		`{"rule":"pair","key":["=1+1","/x"]}`,
		`{"rule":"all"}`,
		`{"attributes":{"user":"=HYPERLINK(\"x\")","both":"yes"},"costs":{"tokens":30}}`,
		`{"attributes":{"idea":"shadow"}}`,
		`{"attributes":{"ip":"192.0.2.1"}}`,
		`{"attributes":{"tenant":"internal","ip":"198.51.100.8"}}`,
	} {
		n.Check(body)
	}
	n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check/batch",
		Body: `{"checks":[{"rule":"all","cost":3},{"rule":"all","cost":4},{"rule":"nothing","key":"x"}]}`})
	resp, text := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/v1/usage/monthly"})
	var have monthAnswer
	if err := json.Unmarshal([]byte(text), &have); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%v: %d %s", err, resp.StatusCode, text)
	}
	const user = `=HYPERLINK("x")`
	var lines []string
	for _, r := range have.Rows {
		key, _ := json.Marshal(r.Key)
		lines = append(lines,
			strings.Join([]string{r.Rule, string(key), r.Unit,
				string(codec.AppendInt(nil, "", r.Cost)),
				string(codec.AppendInt(nil, "", r.Checks))}, " "))
	}
	quoted, _ := json.Marshal(user)
	want := []string{
		"a " + string(quoted) + " requests 1 1", "all [] requests 8 3", "b " + string(quoted) + " requests 1 1",
		"b " + string(quoted) + " tokens 30 1", `login "198.51.100.7" requests 3 2`, `pair ["=1+1","/x"] requests 1 1`,
	}
	if !slices.Equal(lines, want) || have.Scope != "cluster" || have.Incomplete == nil || len(have.Incomplete) > 0 ||
		have.Month != time.Now().UTC().Format("2006-01") {
		t.Errorf("have %s\nwant %q", text, want)
	}
	resp, text = n.Do(apitest.Call{Method: "GET",
		URL: n.AdminURL + "/v1/usage/monthly?format=csv&rule=a&scope=node&month=" + have.Month})
	table, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil || len(table) != 2 ||
		!slices.Equal(table[1], []string{have.Month, "a", "'" + user, "requests", "1", "1", "0"}) ||
		resp.Header.Get("Content-Type") != admin.TypeCSV {
		t.Errorf("CSV: %v %q %v", err, text, resp.Header)
	}
	_, metrics := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/metrics"})
	if !strings.Contains(metrics, "rlnode_usage_rows 6\n") ||
		!strings.Contains(metrics, "rlnode_usage_lost_total 0\n") {
		t.Error("the metrics lack usage")
	}
}

// If a node can't be reached, JSON says so; CSV is refused unless incomplete data is allowed.
func TestMonthlyUsageIncomplete(t *testing.T) {
	t.Parallel()
	n := startMeteredNode(t, usage.Member{ID: ring.NodeID{1}, Name: "n1"}, usage.Member{ID: ring.NodeID{3}, Name: "n3"})
	n.Check(`{"rule":"all","cost":3}`)
	resp, text := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/v1/usage/monthly"})
	if resp.StatusCode != 200 ||
		!strings.HasSuffix(text, `"incomplete":["n3"],"estimated":[]}`+"\n") ||
		resp.Header.Get(admin.IncompleteHeader) != `"n3"` {
		t.Errorf("have %d %s %v", resp.StatusCode, text, resp.Header)
	}
	resp, text = n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/v1/usage/monthly?format=csv"})
	if resp.StatusCode != 503 || !strings.Contains(text, "usage is missing from n3") ||
		!strings.Contains(text, `"incomplete"`) {
		t.Errorf("have %d %s", resp.StatusCode, text)
	}
	resp, text = n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/v1/usage/monthly?format=csv&incomplete=allow"})
	if resp.StatusCode != 200 || !strings.Contains(text, ",all,[],requests,3,1,0") ||
		resp.Header.Get(admin.IncompleteHeader) != `"n3"` {
		t.Errorf("have %d %s %v", resp.StatusCode, text, resp.Header)
	}
	for _, bad := range []string{"month=2026", "month=2026-13", "month=../x", "format=xml",
		"scope=all", "incomplete=yes", "rule=" + strings.Repeat("x", 2000)} {
		if resp, text := n.Do(apitest.Call{Method: "GET",
			URL: n.AdminURL + "/v1/usage/monthly?" + bad}); resp.StatusCode != 400 ||
			!strings.Contains(text, "bad-value") {
			t.Errorf("%.30s: have %d %s", bad, resp.StatusCode, text)
		}
	}
	off := startNode(t, nil)
	if resp, _ := off.Do(apitest.Call{Method: "GET", URL: off.AdminURL + "/v1/usage/monthly"}); resp.StatusCode != 404 {
		t.Errorf("turned off: have %d, want 404", resp.StatusCode)
	}
}

func TestCell(t *testing.T) {
	for have, want := range map[string]string{"": "", "a": "a", "=a": "'=a", "+1": "'+1", "-1": "'-1", "@x": "'@x", "\tx": "'\tx",
		"'x": "''x", "a=b": "a=b", "＝x": "'＝x", "\xff": "\xff"} {
		expect.Equal(t, admin.Cell(have), want, "%q", have)
	}
}
