package gossip

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rlnode/rlnode/internal/wake"
)

const (
	joinsAtOnce    = 8
	maxSeedJoins   = 64               // seed addresses joined in one round; a random choice if there are more
	maxMemberJoins = 16               // other addresses joined in one round, likewise
	roundTime      = 10 * time.Second // after this, a round begins no more joins
	lookupTime     = 5 * time.Second
	rememberFor    = 72 * time.Hour // how long to keep an address without meeting a member there
	// maxFailing bounds the addresses that are remembered because they could not be
	// joined. Beyond it, all are forgotten, and may be logged again.
	maxFailing = 1024
)

// firstRounds are the pauses before the first rounds; the pause before a later
// one is Config.RejoinInterval. Each of the first rounds also joins one known
// member: when many nodes start at once, some miss messages about others, and
// memberlist makes up for that only at its next syncs.
var firstRounds = [...]time.Duration{0, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second,
	4 * time.Second}

// restoreRemembered adopts the addresses of an earlier run.
func (g *Gossip) restoreRemembered() {
	for _, s := range g.config.Remembered {
		if at, ok := parseAddress(s); !ok {
			g.config.Logger.Warn("a remembered address of a member can't be used", "address", s)
		} else if len(g.remembered) < maxRemembered {
			g.remembered[at] = time.Now()
		}
	}
}

// parseAddress parses ip:port.
func parseAddress(s string) (at netip.AddrPort, ok bool) {
	at, err := netip.ParseAddrPort(s)
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), err == nil
}

// AddAddresses adds addresses (ip:port) of possible members that this node has
// not met. They are joined at once, and remembered like Config.Remembered, at
// most 1,000 in all.
func (g *Gossip) AddAddresses(addresses []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}

	known := map[netip.AddrPort]bool{g.self.gossipAddress(): true}
	for _, e := range g.table.entries {
		known[e.gossipAddress()] = true
	}

	before := len(g.remembered)
	for _, s := range addresses {
		if at, ok := parseAddress(s); ok && !known[at] && len(g.remembered) < maxRemembered {
			g.remembered[at] = time.Now()
		}
	}

	if len(g.remembered) > before {
		wake.Signal(g.addressesAdded)
	}
}

// Addresses returns at most 1,000 gossip addresses, live members first: those
// of members that are alive or have failed, and remembered ones at which no
// member was met yet. The next run should pass them to Open as
// Config.Remembered.
func (g *Gossip) Addresses() []string {
	g.mu.Lock()
	defer g.mu.Unlock()

	var alive, rest []netip.AddrPort
	for _, e := range g.table.entries {
		at := e.gossipAddress()
		switch {
		case e.hidden:
		case e.State == Alive:
			alive = append(alive, at)
		case e.State == Failed:
			rest = append(rest, at)
		}
	}

	rest = slices.AppendSeq(rest, maps.Keys(g.remembered))
	slices.SortFunc(alive, netip.AddrPort.Compare)
	slices.SortFunc(rest, netip.AddrPort.Compare)

	list := []string{}
	isListed := map[netip.AddrPort]bool{}
	for _, at := range slices.Concat(alive, rest) {
		if len(list) < maxRemembered && !isListed[at] {
			isListed[at] = true
			list = append(list, at.String())
		}
	}
	return list
}

// rejoin keeps joining seeds and failed members: memberlist forgets dead
// members, so the two sides of a long cut would never meet again.
func (g *Gossip) rejoin() {
	failing := make(map[netip.AddrPort]bool)
	for round := 0; ; round++ {
		pause := g.config.RejoinInterval
		extraLive := 0
		if round < len(firstRounds) {
			pause = min(pause, firstRounds[round])
			extraLive = 1
		}
		pause += time.Duration((rand.Float64() - 0.5) * 0.4 * float64(pause)) // ±20 %, so that nodes don't synchronise

		select {
		case <-g.ctx.Done():
			return
		case <-time.After(pause):
		case <-g.addressesAdded:
		}

		g.joinTargets(extraLive, failing)
	}
}

// joinTargets joins the targets, several at once, and waits for all. The
// targets include up to extraLive live members. failing holds the addresses
// that could not be joined the last time, so that only changes are logged.
func (g *Gossip) joinTargets(extraLive int, failing map[netip.AddrPort]bool) {
	ctx, cancel := context.WithTimeout(g.ctx, roundTime)
	defer cancel()

	targets := g.nextTargets(ctx, extraLive)
	errs := make([]error, len(targets))
	running := make(chan struct{}, joinsAtOnce)

	var joins sync.WaitGroup
	for i, at := range targets {
		select {
		case <-ctx.Done():
			errs[i] = errNotTried
		case running <- struct{}{}:
			joins.Go(func() {
				_, errs[i] = g.memberlist.Join([]string{at.String()})
				<-running
			})
		}
	}

	joins.Wait()

	// The first rounds join live members, too. A node may still be starting then, so
	// its failure is not logged.
	logFailures := extraLive == 0

	if len(failing) > maxFailing {
		clear(failing)
	}
	g.recordRejections(targets, errs)
	for i, at := range targets {
		err := errs[i]
		switch {
		case err == errNotTried, g.ctx.Err() != nil, isRejection(err):
		case err == nil && failing[at]:
			delete(failing, at)
			g.config.Logger.Info("a node that could not be joined has been joined", "address", at)
		case err != nil && !failing[at] && logFailures:
			failing[at] = true
			g.config.Logger.Info("a node can't be joined, retrying", "address", at, "reason", reason(err))
		}
	}
}

// recordRejections counts the nodes that close this node's connections without an
// answer, and logs each of them at most once an hour. Most probably their
// secret is another one, so this node waits for them in vain.
func (g *Gossip) recordRejections(targets []netip.AddrPort, errs []error) {
	g.mu.Lock()
	defer g.mu.Unlock()

	g.rejecting = 0
	for i, at := range targets {
		if !isRejection(errs[i]) {
			continue
		}

		g.rejecting++
		g.logOnce(eventKey{text: "a node rejects this one: their cluster secrets differ, or this is not its gossip port", name: at.String()},
			slog.LevelWarn, "address", at)
	}
}

// isRejection reports whether err is errNoAnswer, which memberlist made a text.
func isRejection(err error) bool {
	return err != nil && strings.Contains(err.Error(), errNoAnswer.Error())
}

// Rejecting returns how many nodes closed this node's connections without an
// answer when they were last joined.
func (g *Gossip) Rejecting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.rejecting
}

// errNotTried marks a target that was not joined because roundTime was over.
var errNotTried = errors.New("no time was left")

// reason returns the error of a join of one address, without memberlist's list around it.
func reason(err error) error {
	var list interface{ WrappedErrors() []error }
	if errors.As(err, &list) && len(list.WrappedErrors()) == 1 {
		return list.WrappedErrors()[0]
	}
	return err
}

// nextTargets returns the addresses to join now: those of seeds first, then
// those of failed members and remembered ones, and up to extraLive of live
// members at the end. It also updates what is known about the seeds, and forgets
// addresses that were remembered for long.
func (g *Gossip) nextTargets(ctx context.Context, extraLive int) []netip.AddrPort {
	seeds := g.resolveSeeds(ctx)

	g.mu.Lock()
	defer g.mu.Unlock()

	g.namedCount = countNamed(seeds, g.self.gossipAddress())
	g.seedAddresses = seeds
	if g.self.State == Left {
		return nil
	}

	live := g.table.liveAddresses()
	pk := picker{g.self.gossipAddress(): true}
	for _, at := range live {
		pk[at] = true
	}

	targets := pk.random(slices.Concat(seeds...), maxSeedJoins)
	g.expireRemembered(time.Now())
	others := slices.AppendSeq(g.table.failedAddresses(), maps.Keys(g.remembered))
	targets = append(targets, pk.random(others, maxMemberJoins)...)

	shuffle(live)
	return append(targets, live[:min(extraLive, len(live))]...)
}

// picker picks addresses at random. It holds those that are not to be picked, or
// were.
type picker map[netip.AddrPort]bool

// random picks up to most of the addresses in from at random. It shuffles from.
func (pk picker) random(from []netip.AddrPort, most int) (picked []netip.AddrPort) {
	shuffle(from)
	for _, at := range from {
		if len(picked) < most && !pk[at] {
			pk[at] = true
			picked = append(picked, at)
		}
	}
	return picked
}

func shuffle(list []netip.AddrPort) {
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
}

// expireRemembered forgets the addresses that were added longer than rememberFor
// ago. The caller must hold g.mu.
func (g *Gossip) expireRemembered(now time.Time) {
	maps.DeleteFunc(g.remembered, func(_ netip.AddrPort, since time.Time) bool { return now.Sub(since) > rememberFor })
}

// countNamed returns the number of nodes that the seeds name, including self.
// seeds holds the resolved addresses of each seed. A seed may name several
// nodes. A seed without an address counts as one node. An IPv4 and an IPv6
// address of one seed count as one node.
func countNamed(seeds [][]netip.AddrPort, self netip.AddrPort) int {
	known := map[netip.AddrPort]bool{self: true}
	n := 1

	for _, list := range seeds {
		var fresh [2]int // IPv4, IPv6
		for _, at := range list {
			if !known[at] {
				known[at] = true
				if at.Addr().Is4() {
					fresh[0]++
				} else {
					fresh[1]++
				}
			}
		}

		if len(list) == 0 {
			fresh[0] = 1
		}

		n += max(fresh[0], fresh[1])
	}
	return n
}

// NamedNodes returns the number of nodes that Config.Join names, including this
// one; 0 before the first lookup.
func (g *Gossip) NamedNodes() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.namedCount
}

// MissingSeeds returns the seeds in Config.Join, as written there, whose
// addresses have no live member.
func (g *Gossip) MissingSeeds() (missing []string) {
	g.mu.Lock()
	defer g.mu.Unlock()

	isLive := map[netip.AddrPort]bool{g.self.gossipAddress(): true}
	for _, at := range g.table.liveAddresses() {
		isLive[at] = true
	}

	for i, list := range g.seedAddresses {
		if !slices.ContainsFunc(list, func(at netip.AddrPort) bool { return isLive[at] }) {
			missing = append(missing, g.config.Join[i])
		}
	}
	return missing
}

// resolveSeeds resolves each seed to its current addresses.
func (g *Gossip) resolveSeeds(ctx context.Context) [][]netip.AddrPort {
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()

	found := make([][]netip.AddrPort, len(g.config.seeds))
	var lookups sync.WaitGroup
	for i, s := range g.config.seeds {
		s.port = cmp.Or(s.port, uint16(g.config.Port)) // parseSeed did not know the port if Open had to pick one
		if ip, err := netip.ParseAddr(s.host); err == nil {
			found[i] = []netip.AddrPort{netip.AddrPortFrom(ip.Unmap(), s.port)}
			continue
		}

		lookups.Go(func() {
			ips, err := g.config.Lookup(ctx, s.host)
			if err != nil {
				g.config.Logger.Debug("a seed's name can't be resolved now", "seed", s.host, "error", err)
			}
			for _, ip := range ips {
				found[i] = append(found[i], netip.AddrPortFrom(ip.Unmap(), s.port))
			}
		})
	}

	lookups.Wait()
	return found
}
