package node

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/cluster/secret"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/memnet"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// Whole nodes make much garbage; fewer collections make the tests faster. GOGC
// and GOMEMLIMIT set other bounds.
func TestMain(m *testing.M) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	os.Exit(m.Run())
}

// testCluster is a cluster in this process, on virtual time. Its nodes are
// complete but serve no HTTP and keep everything but usage in memory.
type testCluster struct {
	t         *testing.T
	net       *memnet.Net
	start     time.Time
	nodes     []*testNode
	log       *slog.Logger
	ownership ownershipLog

	dir          string // for nodes' addresses and notes
	rules        string // initial rules
	region       string
	primary      string
	expect       int                       // BootstrapExpect; 0 for the number of nodes
	subnet       int                       // its nodes' addresses are 10.0.<subnet>.1 and up
	wanAddresses []string                  // gossip addresses of other regions' entry nodes
	secret       []secret.Secret           // the cluster's; nil for none
	build        func(i int) cluster.Build // what a node can read; nil for what this source can
	silence      time.Duration             // after which a node counts as unreachable; 0 for the default
	clockOffset  time.Duration             // of its nodes' wall clocks from virtual time
	months       int                       // --usage-months
	redis        bool                      // its nodes speak the Redis protocol
	stopped      atomic.Bool               // the clocks that time authority stand still
	outside      int                       // how many nodes have not joined yet, or have left for good
	// wrapRecorder wraps the recorder of a starting node; nil for no wrapper.
	wrapRecorder func(*testNode, limiter.Recorder) limiter.Recorder
	// inline is the subject, with its limits, that each check brings; nil if checks use rules.
	inline *rules.InlineSubject
}

// useInline makes checks bring the limit of exactRules or hybridRules, if inline is set.
func (p *testCluster) useInline(inline bool, limit int, exact bool) {
	if inline {
		p.inline = &rules.InlineSubject{Namespace: "tests", Exact: exact, Limits: []document.InlineLimit{
			{Limit: int64(limit), Per: "8760h", Algorithm: "fixed-window"}, // the same window as the rules'
		}}
	}
}

// alternatives returns the values of a setting that a test tries: the usual one
// or, if every case is asked for, both.
func alternatives(usual bool) []bool {
	if *everyCase {
		return []bool{usual, !usual}
	}
	return []bool{usual}
}

// runWithRuleAndInline runs a test with a rule and with inline limits.
func runWithRuleAndInline(t *testing.T, test func(t *testing.T, inline bool)) {
	runWith(t, []bool{false, true}, test)
}

func runWith(t *testing.T, inlineToo []bool, test func(t *testing.T, inline bool)) {
	for _, inline := range inlineToo {
		t.Run(map[bool]string{false: "rule", true: "inline"}[inline], func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { test(t, inline) })
		})
	}
}

// subjectHash returns the half of a subject's hash that selects its partition.
func (p *testCluster) subjectHash(rule, key string) uint64 {
	p.t.Helper()
	l := p.nodes[0].node.limiter
	if p.inline != nil {
		var m rules.Match
		one := *p.inline
		one.Key = []string{key}
		if err := l.Rules().MatchInline(&one, true, &m); err != nil {
			p.t.Fatal(err)
		}
		return m.Hits[0].Subject.Hi
	}
	u, err := l.Locate(&limiter.Query{Rule: rule, Key: []string{key}})
	if err != nil {
		p.t.Fatal(err)
	}
	return u.Hash.Hi
}

// testNode is a node of a testCluster. It outlives its processes.
type testNode struct {
	cluster  *testCluster
	settings *Config
	id       ring.NodeID
	boot     uint64
	node     *Node // of the current process
	memory   *testDisk
	disk     *diskHandle // of the current process
	ip       string
	build    cluster.Build
	alive    atomic.Bool
	ready    atomic.Bool

	clockOffset time.Duration // of its wall clock from virtual time

	crashed atomic.Bool
}

func newTestCluster(t *testing.T, n int, text string) *testCluster {
	p := newTestNetwork(t).newCluster("default", "default", 0)
	p.startNodes(n, text)
	p.awaitWhole()
	return p
}

// newRegions starts a cluster of n nodes for each region; all know each other's
// addresses. The first region is the primary. It returns when each cluster is
// whole; they may not have met yet.
func newRegions(t *testing.T, n int, text string, regions ...string) []*testCluster {
	all := newTestNetwork(t).newClusters(n, regions...)
	for _, p := range all {
		p.startNodes(n, text)
	}
	for _, p := range all {
		p.awaitWhole()
	}
	return all
}

// newClusters returns a cluster for each region, which will start with n nodes.
// The first region is the primary.
func (s *testNetwork) newClusters(n int, regions ...string) []*testCluster {
	all := make([]*testCluster, len(regions))
	for i, name := range regions {
		all[i] = s.newCluster(name, regions[0], i+1)
		for j := range regions {
			for k := range n {
				if i != j {
					all[i].wanAddresses = append(all[i].wanAddresses, fmt.Sprintf("10.0.%d.%d", j+1, k+1))
				}
			}
		}
	}
	return all
}

// testNetwork is the network between clusters.
type testNetwork struct {
	t     *testing.T
	net   *memnet.Net
	start time.Time
	log   *slog.Logger
}

func newTestNetwork(t *testing.T) *testNetwork {
	s := &testNetwork{t: t, net: memnet.New(), start: time.Now(), log: slog.New(slog.DiscardHandler)}
	s.net.Backoff()
	if os.Getenv("RLNODE_TEST_LOG") != "" {
		s.log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	s.net.Delay(100 * time.Microsecond)
	return s
}

func (s *testNetwork) newCluster(region, primary string, subnet int) *testCluster {
	return &testCluster{t: s.t, net: s.net, start: s.start, log: s.log, region: region,
		primary: primary, subnet: subnet}
}

// startNodes starts n nodes with these rules.
func (p *testCluster) startNodes(n int, text string) {
	p.dir, p.rules = p.t.TempDir(), text
	for i := range n {
		v := p.addNode(p.settings(i, n))
		if p.build != nil {
			v.build = p.build(i)
		}
	}
	for _, v := range p.nodes {
		v.startProcess()
	}
}

// addNode adds a node without starting it. Once the test has ended, so do its nodes.
func (p *testCluster) addNode(settings *Config) *testNode {
	i := len(p.nodes)
	if i == 0 {
		p.t.Cleanup(p.end) // before the folder goes, which is older
	}
	v := &testNode{
		cluster: p, ip: p.address(i), memory: newTestDisk(), settings: settings,
		id: ring.NodeID{byte(i + 1), byte(p.subnet)}, clockOffset: p.clockOffset,
	}
	p.nodes = append(p.nodes, v)
	return v
}

func (p *testCluster) address(i int) string { return fmt.Sprintf("10.0.%d.%d", p.subnet, i+1) }

var everyCase = flag.Bool("every-case", false,
	"run all of the similar cases of each test on virtual time; make models does")

// casesToRun returns how many of n similar cases to run: one, unless all are asked for.
func casesToRun(n int) int {
	if *everyCase {
		return n
	}
	return 1
}

func (p *testCluster) settings(i, n int) *Config {
	c := &Config{
		Name: fmt.Sprintf("n%d", i+1), ClusterBind: p.address(i), GossipPort: 7946, PeerPort: 7947, Region: p.region,
		WANPort: 7948, WANJoin: p.wanAddresses, PrimaryRegion: p.primary, InsecureCluster: p.secret == nil,
		Rules: []byte(p.rules), MaxCounters: 100_000, BootstrapExpect: cmp.Or(p.expect, n),
		UsageMonths: p.months, UsageSubjects: 1000,
	}
	c.DataDir = filepath.Join(p.dir, c.Name)
	if p.redis {
		c.RedisAddr = p.address(i) + ":6379"
	}
	if p.secret != nil {
		c.ClusterSecretFile = c.DataDir + ".secret"
		writeSecrets(p.t, c.ClusterSecretFile, p.secret...)
	}
	for j := range n {
		if j != i {
			c.Join = append(c.Join, p.address(j))
		}
	}
	return c
}

// startProcess starts the node's process.
func (v *testNode) startProcess() {
	p := v.cluster
	host := p.net.Host(v.ip)
	gossip, err := host.GossipTransport(7946)
	if err != nil {
		p.t.Fatal(err)
	}
	if v.boot == 0 { // unlike real ones, these boots are not random
		v.boot = uint64(v.id[0]) << 32
	}
	v.boot++
	v.disk = v.memory.open()
	config := *v.settings
	config.Logger = p.log.With("at", config.Name, "boot", v.boot)
	config.env = environment{
		storage: func(c *settings) (storage, error) {
			return storage{id: v.id, boot: v.boot, dir: c.DataDir, store: v.disk}, os.MkdirAll(c.DataDir, 0o700)
		},
		listen: func() (net.Listener, error) { return host.Listen(7947) }, dial: host.Dial, gossip: gossip,
		redis:    func(string) (net.Listener, error) { return host.Listen(6379) },
		wan:      func() (memberlist.Transport, error) { return host.GossipTransport(7948) },
		boottime: p.boottime,
		recorder: ownershipRecorder{log: &p.ownership, name: config.Name, start: p.start},
		build:    v.build, silence: p.silence, clockOffset: v.clockOffset,
	}
	if p.wrapRecorder != nil {
		config.env.recorder = p.wrapRecorder(v, config.env.recorder)
	}
	config.BootstrapExpect = min(config.BootstrapExpect, maxExpect)
	complete, err := config.complete()
	if err != nil {
		p.t.Fatal(err)
	}
	complete.BootstrapExpect = v.settings.BootstrapExpect // tests wait for all of their nodes
	n, err := build(complete)
	if err == nil {
		err = n.listen()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	if _, noRoom := n.table.Restore(n.clock.Now(), v.memory.table); noRoom > 0 {
		p.t.Fatalf("no room for %d counters", noRoom)
	}
	v.node = n
	v.alive.Store(true)
	v.crashed.Store(false)
	if err := n.start(); err != nil {
		p.t.Fatal(err)
	}
	n.loops.Go(func() {
		if n.WaitReady(n.ctx) == nil {
			v.ready.Store(true)
		}
	})
}

// admin returns the node as its admin plane sees it.
func (v *testNode) admin() adminView { return adminView{v.node.cluster, v.node} }

// boottime is the clock that times authority.
func (p *testCluster) boottime() time.Duration {
	if p.stopped.Load() {
		return time.Hour
	}
	return time.Since(p.start)
}

// endProcess ends the node's process: gracefully if clean is set, otherwise like a crash.
func (v *testNode) endProcess(clean bool) {
	n := v.node
	v.ready.Store(false)
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	if clean {
		if err := n.leave(ctx, false, ""); err != nil {
			v.cluster.t.Errorf("%s: step back: %v", v.settings.Name, err)
		}
	} else {
		v.crashed.Store(true)
		v.cluster.net.Crash(v.ip)
	}
	v.alive.Store(false)
	close(v.disk.ended)
	file := filepath.Join(v.settings.DataDir, "usage.db")
	var written []byte
	if n.meter != nil && !clean {
		synctest.Wait() // no goroutine is writing
		written, _ = os.ReadFile(file)
	}
	_ = n.release(context.Background())
	if written != nil { // a killed process would not have written the rest
		if err := os.WriteFile(file, written, 0o600); err != nil {
			v.cluster.t.Error(err)
		}
	}
	v.ready.Store(false) // the node may have become ready meanwhile
}

// end stops the nodes, and fails the test if two of them owned a partition at once.
func (p *testCluster) end() {
	p.checkOwnership()
	for _, v := range p.nodes {
		if v.alive.Load() {
			v.endProcess(false)
		}
	}
	time.Sleep(10 * time.Second) // gossip's last probes
}

// awaitWhole waits until every node is in one settled ring and has authority.
//
// It waits for more than ten minutes, the longest that a node must stay out
// after being cut off repeatedly.
func (p *testCluster) awaitWhole() {
	p.t.Helper()
	p.poll(5*time.Millisecond, 11*time.Minute, "the cluster is whole", func() bool {
		revision := uint64(0)
		for _, v := range p.nodes {
			if !v.alive.Load() {
				continue
			}

			c := v.node.cluster
			s := c.State()
			if revision == 0 {
				revision = s.Revision
			}

			if !v.ready.Load() || !c.Authority() || !s.Settled || len(s.To.Members()) != len(p.nodes)-p.outside ||
				v.node.keeper.AdoptedRevision() != s.Revision || s.Revision != revision {
				return false
			}
		}
		return true
	})
}

func (p *testCluster) eventually(what string, ok func() bool) {
	p.t.Helper()
	p.within(time.Minute, what, ok)
}

func (p *testCluster) within(bound time.Duration, what string, ok func() bool) {
	p.t.Helper()
	p.poll(time.Millisecond, bound, what, ok)
}

func (p *testCluster) poll(every, bound time.Duration, what string, ok func() bool) {
	p.t.Helper()
	for range bound / every {
		if ok() {
			return
		}
		time.Sleep(every)
	}
	p.t.Fatalf("%s: not within %s", what, bound)
}

// check makes a check at a node. It reports whether the check was allowed.
func (v *testNode) check(rule, key string, a *limiter.Answer) (bool, error) {
	q := v.cluster.query(rule, key)
	err := v.node.limiter.Check(&q, a)
	return err == nil && a.Allowed, err
}

func (p *testCluster) query(rule, key string) limiter.Query {
	if p.inline == nil {
		return limiter.Query{Rule: rule, Key: []string{key}, ByKey: true}
	}
	one := limiter.Subject{InlineSubject: *p.inline}
	one.Key = []string{key}
	return limiter.Query{Subjects: []limiter.Subject{one}}
}

// loadGenerator makes checks of several subjects at all ready nodes until it is stopped.
type loadGenerator struct {
	keys     int
	admitted []atomic.Int64
	refused  atomic.Int64
	by       [limiter.ByNone + 1]atomic.Int64
	slow     atomic.Int64 // took over a second
	failed   atomic.Int64
	stop     atomic.Bool
	done     sync.WaitGroup
	log      func(format string, args ...any) // logs slow checks and those decided in fallback; may be nil
}

func (p *testCluster) startLoad(rule string, keys, workers int) *loadGenerator {
	c := &loadGenerator{keys: keys, admitted: make([]atomic.Int64, keys)}
	if os.Getenv("RLNODE_TEST_LOG") != "" {
		c.log = func(f string, a ...any) { p.log.Info(fmt.Sprintf(f, a...)) }
	}
	for w := range workers {
		c.done.Go(func() {
			var a limiter.Answer
			for i := w; !c.stop.Load(); i++ {
				v := p.nodes[i%len(p.nodes)]
				if !v.ready.Load() {
					time.Sleep(time.Millisecond)
					continue
				}
				began, key := time.Now(), (i*5+w)%keys
				allowed, err := v.check(rule, fmt.Sprintf("k%d", key), &a)
				switch {
				case v.crashed.Load():
					continue // its answer never reached a client
				case err != nil:
					c.failed.Add(1)
				case allowed:
					c.admitted[key].Add(1)
				default:
					c.refused.Add(1)
				}
				c.by[a.DecidedBy].Add(1)
				if took := time.Since(began); c.log != nil &&
					(a.DecidedBy == limiter.ByFallback || took > 20*time.Millisecond) {
					c.log("worker %d: key %d at %s decided by %s after %v", w, key, v.settings.Name, a.DecidedBy, took)
				}
				if time.Since(began) > time.Second {
					c.slow.Add(1)
				}
				time.Sleep(time.Duration(1500+i%100) * time.Microsecond)
			}
		})
	}
	return c
}

// stopLoad stops the checks and returns how many checks were decided in each way.
func (c *loadGenerator) stopLoad() map[string]int64 {
	c.stop.Store(true)
	c.done.Wait()
	by := map[string]int64{}
	for i := range c.by {
		if n := c.by[i].Load(); n > 0 {
			by[limiter.DecidedBy(i).String()] = n
		}
	}
	return by
}

func (c *loadGenerator) total() (n int64) {
	for i := range c.admitted {
		n += c.admitted[i].Load()
	}
	return n
}

// used returns what the owner of a subject has counted.
func (p *testCluster) used(rule, key string) int64 {
	p.t.Helper()
	used, err := p.tryUsed(rule, key)
	if err != nil {
		p.t.Fatal(err)
	}
	return used
}

// tryUsed is used, but returns an error if the use is unknown now.
func (p *testCluster) tryUsed(rule, key string) (int64, error) {
	for _, v := range p.nodes {
		if v.ready.Load() {
			if p.inline != nil {
				return v.peekInline(key)
			}
			u, err := v.node.limiter.Usage(&limiter.Query{Rule: rule, Key: []string{key}})
			if err != nil {
				return 0, err
			}
			return u.Limits[0].Used, nil
		}
	}
	return 0, errors.New("no node is ready")
}

// peekInline peeks at an inline subject and returns its use. It fails unless the owner answers.
func (v *testNode) peekInline(key string) (int64, error) {
	var a limiter.Answer
	q := v.cluster.query("", key)
	q.Subjects[0].Mode, q.Subjects[0].Costs = counters.PeekMode, []limiter.UnitCost{{Unit: document.Requests}}
	err := v.node.limiter.Check(&q, &a)
	if err == nil && a.DecidedBy < limiter.ByForward {
		err = limiter.ErrNoOwner
	}
	if err != nil {
		return 0, err
	}
	return a.Limits[0].Used, nil
}

// ownershipLog records which node decides each partition as its owner, and
// when. It detects two owners at once.
type ownershipLog struct {
	mu         sync.Mutex // guards the fields below
	last       [ring.Partitions]lastDecision
	violations []string // at most 20
}

type lastDecision struct {
	by            string
	lineage       uint64
	began, ended  int64
	endedLineages map[uint64]bool // lineages that have ended
}

// ownershipRecorder writes one node's records to the ownershipLog.
type ownershipRecorder struct {
	log   *ownershipLog
	name  string
	start time.Time
}

func (w ownershipRecorder) Clock() int64 { return int64(time.Since(w.start)) }

func (w ownershipRecorder) Decided(by limiter.DecidedBy, p int, lineage uint64, began, ended int64) {
	if by != limiter.ByOwner {
		return
	}
	d := w.log
	d.mu.Lock()
	defer d.mu.Unlock()
	last := &d.last[p]
	if last.endedLineages == nil {
		last.endedLineages = map[uint64]bool{}
	}
	switch {
	case last.endedLineages[lineage]:
		d.violation("partition %d: %s decides under a lineage that has ended", p, w.name)
	case last.by != "" && last.by != w.name && began < last.ended:
		d.violation("partition %d: two owners: %s decides from %d, %s until %d", p, w.name, began, last.by, last.ended)
	}
	if last.lineage != 0 && last.lineage != lineage {
		last.endedLineages[last.lineage] = true
	}
	last.by, last.lineage, last.began, last.ended = w.name, lineage, began, max(ended, last.ended)
}

func (d *ownershipLog) violation(format string, args ...any) {
	if len(d.violations) < 20 {
		d.violations = append(d.violations, fmt.Sprintf(format, args...))
	}
}

func (p *testCluster) checkOwnership() {
	p.t.Helper()
	p.ownership.mu.Lock()
	defer p.ownership.mu.Unlock()
	for _, text := range p.ownership.violations {
		p.t.Error(text)
	}
}
