package node

import (
	"cmp"
	"context"
	"errors"
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
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/memnet"
	"github.com/rlnode/rlnode/internal/secret"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// Whole nodes make much garbage; fewer collections make the tests faster.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

// planet is a cluster in this process, on virtual time. Its nodes are complete but serve no HTTP and keep everything but
// usage in memory.
type planet struct {
	t     *testing.T
	net   *memnet.Net
	start time.Time
	nodes []*virtual
	log   *slog.Logger
	diary diary

	dir     string // for nodes' addresses and notes
	rules   string // initial rules
	region  string
	primary string
	expect  int                       // BootstrapExpect; 0 for the number of nodes
	subnet  int                       // its nodes' addresses are 10.0.<subnet>.1 and up
	far     []string                  // gossip addresses of other regions' entry nodes
	secret  []secret.Secret           // the cluster's; nil for none
	build   func(i int) cluster.Build // what a node can read; nil for what this source can
	silence time.Duration             // after which a node counts as unreachable; 0 for the default
	months  int                       // --usage-months
	stopped atomic.Bool               // the clocks that time authority stand still
	// pen wraps the recorder of a starting node; nil for no wrapper.
	pen func(*virtual, limiter.Recorder) limiter.Recorder
	// inline is the subject, with its limits, that each check brings; nil if checks use rules.
	inline *rules.InlineSubject
}

// bring makes checks bring the limit of exactRules or hybridRules, if inline is set.
func (p *planet) bring(inline bool, limit int, exact bool) {
	if inline {
		p.inline = &rules.InlineSubject{Namespace: "tests", Exact: exact, Limits: []rules.InlineLimit{
			{Limit: int64(limit), Per: "8760h", Algorithm: "fixed-window"}, // the same window as the rules'
		}}
	}
}

// asked runs a test with a rule and with inline limits.
func asked(t *testing.T, test func(t *testing.T, inline bool)) {
	for _, inline := range []bool{false, true} {
		t.Run(map[bool]string{false: "rule", true: "inline"}[inline], func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { test(t, inline) })
		})
	}
}

// subject returns the half of a subject's hash that selects its partition.
func (p *planet) subject(rule, key string) uint64 {
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

// virtual is a node of a planet. It outlives its processes.
type virtual struct {
	planet   *planet
	settings *Config
	id       ring.NodeID
	boot     uint64
	node     *Node // of the current process
	memory   *memory
	disk     *handle // of the current process
	ip       string
	build    cluster.Build
	alive    atomic.Bool
	ready    atomic.Bool

	crashed atomic.Bool
}

func newPlanet(t *testing.T, n int, text string) *planet {
	p := newSpace(t).planet("default", "default", 0)
	p.settle(n, text)
	p.whole()
	return p
}

// newRegions starts a cluster of n nodes for each region; all know each other's addresses. The first region is the
// primary. It returns when each cluster is whole; they may not have met yet.
func newRegions(t *testing.T, n int, text string, regions ...string) []*planet {
	space := newSpace(t)
	all := make([]*planet, len(regions))
	for i, name := range regions {
		all[i] = space.planet(name, regions[0], i+1)
		for j := range regions {
			for k := range n {
				if i != j {
					all[i].far = append(all[i].far, fmt.Sprintf("10.0.%d.%d", j+1, k+1))
				}
			}
		}
	}
	for _, p := range all {
		p.settle(n, text)
	}
	for _, p := range all {
		p.whole()
	}
	return all
}

// space is the network between planets.
type space struct {
	t     *testing.T
	net   *memnet.Net
	start time.Time
	log   *slog.Logger
}

func newSpace(t *testing.T) *space {
	s := &space{t: t, net: memnet.New(), start: time.Now(), log: slog.New(slog.DiscardHandler)}
	s.net.Backoff()
	if os.Getenv("RLNODE_TEST_LOG") != "" {
		s.log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	s.net.Delay(100 * time.Microsecond)
	return s
}

func (s *space) planet(region, primary string, subnet int) *planet {
	return &planet{t: s.t, net: s.net, start: s.start, log: s.log, region: region, primary: primary, subnet: subnet}
}

// settle starts n nodes with these rules.
func (p *planet) settle(n int, text string) {
	p.dir, p.rules = p.t.TempDir(), text
	for i := range n {
		v := p.another(p.settings(i, n))
		if p.build != nil {
			v.build = p.build(i)
		}
	}
	for _, v := range p.nodes {
		v.up()
	}
}

// another adds a node without starting it.
func (p *planet) another(settings *Config) *virtual {
	i := len(p.nodes)
	v := &virtual{planet: p, ip: p.address(i), memory: newMemory(), settings: settings, id: ring.NodeID{byte(i + 1), byte(p.subnet)}}
	p.nodes = append(p.nodes, v)
	return v
}

func (p *planet) address(i int) string { return fmt.Sprintf("10.0.%d.%d", p.subnet, i+1) }

// cases returns how many of n similar cases to run: one in short mode.
func cases(n int) int {
	if testing.Short() {
		return 1
	}
	return n
}

func (p *planet) settings(i, n int) *Config {
	c := &Config{
		Name: fmt.Sprintf("n%d", i+1), ClusterBind: p.address(i), GossipPort: 7946, PeerPort: 7947, Region: p.region,
		WANPort: 7948, WANJoin: p.far, PrimaryRegion: p.primary, InsecureCluster: p.secret == nil,
		Rules: []byte(p.rules), MaxCounters: 100_000, BootstrapExpect: cmp.Or(p.expect, n),
		UsageMonths: p.months, UsageSubjects: 1000,
	}
	c.DataDir = filepath.Join(p.dir, c.Name)
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

// up starts the node's process.
func (v *virtual) up() {
	p := v.planet
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
		wan:      func() (memberlist.Transport, error) { return host.GossipTransport(7948) },
		boottime: p.boottime,
		recorder: witness{diary: &p.diary, name: config.Name, start: p.start},
		build:    v.build, silence: p.silence,
	}
	if p.pen != nil {
		config.env.recorder = p.pen(v, config.env.recorder)
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
func (v *virtual) admin() adminView { return adminView{v.node.cluster, v.node} }

// boottime is the clock that times authority.
func (p *planet) boottime() time.Duration {
	if p.stopped.Load() {
		return time.Hour
	}
	return time.Since(p.start)
}

// down ends the node's process: gracefully if clean is set, otherwise like a crash.
func (v *virtual) down(clean bool) {
	n := v.node
	v.ready.Store(false)
	ctx, cancel := context.WithTimeout(context.Background(), leaveBound)
	defer cancel()
	if clean {
		if err := n.stepBack(ctx, false); err != nil {
			v.planet.t.Errorf("%s: step back: %v", v.settings.Name, err)
		}
	} else {
		v.crashed.Store(true)
		v.planet.net.Crash(v.ip)
	}
	v.alive.Store(false)
	close(v.disk.over)
	file := filepath.Join(v.settings.DataDir, "usage.db")
	var written []byte
	if n.meter != nil && !clean {
		synctest.Wait() // no goroutine is writing
		written, _ = os.ReadFile(file)
	}
	_ = n.release(context.Background())
	if written != nil { // a killed process would not have written the rest
		if err := os.WriteFile(file, written, 0o600); err != nil {
			v.planet.t.Error(err)
		}
	}
	v.ready.Store(false) // the node may have become ready meanwhile
}

func (p *planet) end() {
	for _, v := range p.nodes {
		if v.alive.Load() {
			v.down(false)
		}
	}
	time.Sleep(10 * time.Second) // gossip's last probes
}

// whole waits until every node is in one settled ring and has authority.
//
// It waits for more than ten minutes, the longest that a node must stay out after being cut off repeatedly.
func (p *planet) whole() {
	p.t.Helper()
	p.within(11*time.Minute, "the cluster is whole", func() bool {
		for _, v := range p.nodes {
			if !v.alive.Load() {
				continue
			}
			c := v.node.cluster
			s := c.State()
			if !v.ready.Load() || !c.Authority() || !s.Settled || len(s.To.Members()) != len(p.nodes) ||
				v.node.keeper.AdoptedRevision() != s.Revision || s.Revision != p.nodes[0].node.cluster.State().Revision {
				return false
			}
		}
		return true
	})
}

func (p *planet) eventually(what string, ok func() bool) {
	p.t.Helper()
	p.within(time.Minute, what, ok)
}

func (p *planet) within(bound time.Duration, what string, ok func() bool) {
	p.t.Helper()
	for range bound / time.Millisecond {
		if ok() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	p.t.Fatalf("%s: not within %s", what, bound)
}

// check makes a check at a node. It reports whether the check was allowed.
func (v *virtual) check(rule, key string, a *limiter.Answer) (bool, error) {
	q := v.planet.query(rule, key)
	err := v.node.limiter.Check(&q, a)
	return err == nil && a.Allowed, err
}

func (p *planet) query(rule, key string) limiter.Query {
	if p.inline == nil {
		return limiter.Query{Rule: rule, Key: []string{key}, ByKey: true}
	}
	one := limiter.Subject{InlineSubject: *p.inline}
	one.Key = []string{key}
	return limiter.Query{Subjects: []limiter.Subject{one}}
}

// crowd makes checks of several subjects at all ready nodes until it is stopped.
type crowd struct {
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

func (p *planet) crowd(rule string, keys, workers int) *crowd {
	c := &crowd{keys: keys, admitted: make([]atomic.Int64, keys)}
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
				if took := time.Since(began); c.log != nil && (a.DecidedBy == limiter.ByFallback || took > 20*time.Millisecond) {
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

// leave ends the crowd and returns how many checks were decided in each way.
func (c *crowd) leave() map[string]int64 {
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

func (c *crowd) total() (n int64) {
	for i := range c.admitted {
		n += c.admitted[i].Load()
	}
	return n
}

// used returns what the owner of a subject has counted.
func (p *planet) used(rule, key string) int64 {
	p.t.Helper()
	used, err := p.usedNow(rule, key)
	if err != nil {
		p.t.Fatal(err)
	}
	return used
}

// usedNow is used, but returns an error if the use is unknown now.
func (p *planet) usedNow(rule, key string) (int64, error) {
	for _, v := range p.nodes {
		if v.ready.Load() {
			if p.inline != nil {
				return v.lookInline(key)
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

// lookInline peeks at an inline subject and returns its use. It fails unless the owner answers.
func (v *virtual) lookInline(key string) (int64, error) {
	var a limiter.Answer
	q := v.planet.query("", key)
	q.Subjects[0].Mode, q.Subjects[0].Costs = counters.PeekMode, []limiter.UnitCost{{Unit: rules.Requests}}
	err := v.node.limiter.Check(&q, &a)
	if err == nil && a.DecidedBy < limiter.ByForward {
		err = limiter.ErrNoOwner
	}
	if err != nil {
		return 0, err
	}
	return a.Limits[0].Used, nil
}

// diary records which node decides each partition as its owner, and when. It detects two owners at once.
type diary struct {
	mu      sync.Mutex // guards the fields below
	last    [ring.Partitions]entry
	trouble []string // at most 20
}

type entry struct {
	by           string
	lineage      uint64
	began, ended int64
	gone         map[uint64]bool // lineages that have ended
}

// witness writes one node's records to the diary.
type witness struct {
	diary *diary
	name  string
	start time.Time
}

func (w witness) Clock() int64 { return int64(time.Since(w.start)) }

func (w witness) Decided(by limiter.DecidedBy, p int, lineage uint64, began, ended int64) {
	if by != limiter.ByOwner {
		return
	}
	d := w.diary
	d.mu.Lock()
	defer d.mu.Unlock()
	last := &d.last[p]
	if last.gone == nil {
		last.gone = map[uint64]bool{}
	}
	switch {
	case last.gone[lineage]:
		d.note("partition %d: %s decides under a lineage that has ended", p, w.name)
	case last.by != "" && last.by != w.name && began < last.ended:
		d.note("partition %d: two owners: %s decides from %d, %s until %d", p, w.name, began, last.by, last.ended)
	}
	if last.lineage != 0 && last.lineage != lineage {
		last.gone[last.lineage] = true
	}
	last.by, last.lineage, last.began, last.ended = w.name, lineage, began, max(ended, last.ended)
}

func (d *diary) note(format string, args ...any) {
	if len(d.trouble) < 20 {
		d.trouble = append(d.trouble, fmt.Sprintf(format, args...))
	}
}

func (p *planet) peaceful() {
	p.t.Helper()
	p.diary.mu.Lock()
	defer p.diary.mu.Unlock()
	for _, text := range p.diary.trouble {
		p.t.Error(text)
	}
}
