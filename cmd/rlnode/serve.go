package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/tracing"
	"github.com/rlnode/rlnode/usage"
)

// How long stopping takes at most. All of it is done within stopBound: callers are promised ten seconds.
const (
	stopBound = 9 * time.Second
	// leaveBound is for handing counters over to other nodes, while checks are still decided.
	leaveBound = 5 * time.Second
	// drainGrace is how long checks are still decided after /readyz has said that the node goes away: time for a
	// load balancer to look, and for clients to use up what they have sent.
	drainGrace = time.Second
	// saveBound is for most of the counters, while checks are still decided.
	saveBound = 3 * time.Second
	// closeBound is for requests under way when the listeners close.
	closeBound = 2 * time.Second
)

// Run runs a node until a signal.
func (c *serveCmd) Run(env *environment) error {
	if err := c.complete(); err != nil {
		return &exit{code: exitUsage, err: err}
	}
	// Two: the one that asks to stop and the one that insists.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)

	s := &server{settings: c, env: env, log: c.logger(env.stderr), world: realWorld(c)}
	c.warn(s.log, os.Environ())
	warnSecrets(s.log, env.args)
	raiseFiles(s.log)
	return s.run(signals)
}

// run starts the node, waits for a signal and stops it. Starting and stopping happen beside, so that a signal is
// heard meanwhile: the first while the node starts, and the second while it stops, end it at once. Nobody waits
// for the work under way then: the process ends, as in a crash, and every file is written to survive that.
func (s *server) run(signals <-chan os.Signal) error {
	started := make(chan error, 1)
	go func() { started <- s.start() }()
	select {
	case err := <-started:
		if err != nil {
			ctx, cancel := context.WithTimeout(context.Background(), stopBound)
			defer cancel()
			return errors.Join(err, s.release(ctx))
		}
	case sig := <-signals:
		s.log.Info("stopped before it was ready", "signal", sig.String())
		return nil
	}
	select {
	case sig := <-signals:
		s.log.Info("stopping", "signal", sig.String())
	case <-s.env.ctx.Done():
		s.log.Info("stopping")
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	select {
	case err := <-stopped:
		return err
	case sig := <-signals:
		s.log.Warn("stopping at once", "signal", sig.String())
		return &exit{code: exitFailed}
	}
}

// server is a running node. start sets its fields in this order; stop and release end them.
type server struct {
	settings *serveCmd
	env      *environment
	log      *slog.Logger
	world    world

	dir      string // the data directory
	id       ring.NodeID
	boot     uint64 // of this process
	store    store
	disk     func() persist.RaftStatus // how the store does; nil: it has no disk
	table    *counters.Table
	clock    *limiter.Clock
	usage    *usage.Meter    // nil: turned off
	tracer   *tracing.Tracer // nil: turned off
	mates    *mates
	limiter  *limiter.Limiter
	api      *api.API
	counters atomic.Pointer[persist.Counters] // nil while the API answers and they are not opened yet
	fallback *persist.Counters                // of what this node decides by itself
	debts    *debtKeeper
	sweeper  *sweeper
}

// store is where Raft keeps what it must not forget. *persist.Raft is one.
type store interface {
	cluster.Store
	Close() error
}

// start brings a node up. What stands on something comes after it; and whatever can fail for a mistake in the
// settings comes before what takes long:
//
//  1. the data directory and its identity, then Raft's store, whose lock keeps a second process away from everything
//     in the directory;
//  2. what is counted for bills, the table of counters, the calls between nodes, and the limiter, which has no rules yet;
//  3. the listeners: probes are answered from here on, checks with 503 not-ready;
//  4. the counters of the last checkpoint, before this node owns any partition: afterwards they would come too late; and
//     what it had decided by itself, so that a restart renews no share;
//  5. the cluster. It gives the limiter rules and partitions, and the node is ready when it has.
func (s *server) start() error {
	if err := s.openStore(); err != nil {
		return err
	}
	s.table = counters.New(s.settings.MaxCounters)
	s.clock = limiter.NewClock()
	err := errors.Join(s.openUsage(), s.openTracing())
	if err != nil {
		return err
	}
	if s.mates, err = s.meet(); err != nil {
		return err
	}
	s.limiter = s.mates.limiter
	if err := s.listen(); err != nil {
		return err
	}
	if err := s.loadCounters(); err != nil {
		return err
	}
	s.sweeper = startSweeper(s.clock, s.table, s.mates.private.Table())
	return s.mates.join(s.api.Explain, s.open, s.ready)
}

// open lets checks in.
func (s *server) open() {
	for _, w := range s.limiter.Rules().Document.Warnings() {
		s.log.Warn("the rules ask for what is not in force", "at", w.Path, "what", w.Message)
	}
	s.api.Ready()
}

// ready says that probes are told so, too.
func (s *server) ready() {
	scheme := "http"
	if s.settings.HTTPCert != "" {
		scheme = "https"
	}
	s.log.Info("ready", "name", s.settings.Name, "data", scheme+"://"+s.api.DataAddr().String(),
		"admin", scheme+"://"+s.api.AdminAddr().String(), "rules_version", s.limiter.Rules().Version)
}

// openStore opens the data directory and Raft's state in it.
func (s *server) openStore() (err error) {
	dir, err := filepath.Abs(s.settings.DataDir)
	if err != nil {
		return fmt.Errorf("find the data directory: %w", err)
	}
	if s.id, err = persist.OpenDir(dir); err != nil {
		return err
	}
	s.boot = rand.Uint64() | 1 // not zero
	config := persist.DefaultRaftConfig()
	config.Dir, config.Logger = dir, s.log
	opened, err := persist.OpenRaft(config)
	if err != nil {
		return err
	}
	s.store, s.disk, s.dir = opened, opened.Status, dir
	return nil
}

// seed is the rules that a new cluster begins with. A file with mistakes is refused even if it were not used: it was
// given to be.
func (s *server) seed() (*rules.Document, string, error) {
	if s.settings.Rules == "" {
		return rules.Starter(), "starter rules", nil
	}
	doc, err := loadRules(s.env, s.settings.Rules, s.env.stderr)
	return doc, "--rules " + s.settings.Rules, err
}

// listen binds both planes.
func (s *server) listen() (err error) {
	c := s.settings
	config := api.Config{
		DataAddr:       net.JoinHostPort(c.Bind, strconv.Itoa(c.HTTPPort)),
		AdminAddr:      net.JoinHostPort(c.AdminBind, strconv.Itoa(c.AdminPort)),
		CertFile:       c.HTTPCert,
		KeyFile:        c.HTTPKey,
		APIToken:       c.APIToken,
		AdminToken:     c.AdminToken,
		TokensFile:     c.TokensFile,
		AdminHosts:     c.AdminHost,
		Node:           c.Name,
		Version:        readBuild().Version,
		Decider:        s.limiter,
		Subjects:       s.limiter,
		Rules:          s.mates,
		Cluster:        s.mates,
		Membership:     s.mates,
		Levels:         s.mates,
		Regions:        s.mates,
		Loads:          s.mates.loads,
		RuleStats:      s.limiter.Stats,
		Activity:       s.limiter.Activity,
		ClusterStats:   s.limiter.ClusterStats,
		Condition:      s.mates.condition,
		ClusterFigures: s.mates.figures,
		Counters:       s.table.Stats,
		Checkpoints:    s.checkpoints,
		Catch:          s.mates.catch,
		Tracer:         s.tracer,
		Logger:         s.log,
	}
	if s.usage != nil {
		config.Months, config.UsageStats = s.mates.usage, s.usage.Stats
	}
	if s.api, err = api.Open(config); err != nil {
		return err
	}
	s.api.Explain("loading counters")
	return nil
}

// stop ends a node in good order, within stopBound:
//
//  1. /readyz says 503, so that load balancers turn away, while checks are decided as before;
//  2. the partitions are handed over: from then on other nodes decide, and this one asks them;
//  3. most counters that are left are saved meanwhile, while time is not short;
//  4. with --leave-on-term the cluster is left for good;
//  5. the listeners close, when what is under way has been answered: nothing is decided any more;
//  6. what has changed since step 3 is saved, so that nothing decided is forgotten; a node that leaves for good hands
//     over what it has counted for bills since step 4;
//  7. the calls between nodes end, and Raft; its store closes last: its lock says to others that the directory is in
//     use until then.
func (s *server) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopBound)
	defer cancel()
	s.api.Drain()
	grace := time.NewTimer(drainGrace)
	defer grace.Stop()
	s.leave(ctx)
	if err := s.save(ctx); err != nil {
		// The last checkpoint, in release, is what matters; it tells if it fails as well.
		s.log.Warn("counters are not saved yet", "error", err)
	}
	<-grace.C
	err := s.release(ctx)
	if err == nil {
		s.log.Info("stopped")
	}
	return err
}

// leave hands the partitions over. What could not be handed over in time is saved, and found again by the next start.
func (s *server) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaveBound)
	defer cancel()
	if err := s.mates.stepBack(ctx, s.settings.LeaveOnTerm); err != nil {
		s.log.Warn("not all counters are handed over", "error", err)
	}
}

// release closes what is open, in the order of stop; after a start that failed, too. The table stays: whoever
// might still look at it does no harm, and its memory goes with the process.
func (s *server) release(ctx context.Context) error {
	var errs []error
	if s.api != nil {
		errs = append(errs, s.closeListeners(ctx))
	}
	s.closeTracing(ctx)
	if s.sweeper != nil {
		s.sweeper.close()
	}
	errs = append(errs, s.closeCounters(ctx))
	if s.mates != nil {
		errs = append(errs, s.mates.handLast(ctx), s.mates.close())
	}
	if s.usage != nil {
		errs = append(errs, s.usage.Close())
	}
	if s.clock != nil {
		errs = append(errs, s.clock.Close())
	}
	if s.store != nil {
		errs = append(errs, s.store.Close())
	}
	return errors.Join(errs...)
}

func (s *server) closeListeners(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeBound)
	defer cancel()
	err := s.api.Close(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.Info("clients that did not finish were cut off")
		return nil
	}
	return err
}
