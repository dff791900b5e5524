package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
)

// standing is how far a region has come with what is agreed on about regions.
type standing struct {
	World    agreement.WorldID `json:"world"`
	Term     int64             `json:"term"`
	Version  int64             `json:"version"`
	Revision uint64            `json:"revision"`
}

func standingOf(s *agreement.State) standing {
	return standing{s.Regions.World, s.Regions.Term, rulesVersion(s), s.Regions.Revision}
}

// sameLine reports whether s and o have the same world and term, so that the higher version number is the later.
func (s standing) sameLine(o standing) bool { return s.World == o.World && s.Term == o.Term }

// before reports whether o is later than s, in the same world.
func (s standing) before(o standing) bool {
	return s.World == o.World &&
		cmp.Or(cmp.Compare(s.Term, o.Term), cmp.Compare(s.Version, o.Version), cmp.Compare(s.Revision, o.Revision)) < 0
}

// followRequest is what a region's leader reports to the primary, asking for anything newer.
type followRequest struct {
	Region string `json:"region"`
	standing
	Honoured int64           `json:"honoured"` // see honoured
	Clock    int64           `json:"clock"`    // the leader's wall clock, Unix ms
	Level    agreement.Level `json:"level"`    // the region's feature level
}

// followKind is the first byte of the reply.
type followKind byte

const (
	followNothing followKind = iota // nothing is newer
	followState                     // the rest is for agreement.ParseFollow
	followOther                     // this region is not the primary; the rest is the name of the one that it follows
)

// followPrimary, on the leader of another region, asks the primary for news and has it agreed on here. It reports progress
// to the primary at once.
func (g *governor) followPrimary(ctx context.Context) error {
	for {
		more, err := g.followOnce(ctx)
		g.noteFollowed(err)
		if err != nil || !more {
			return err
		}
	}
}

// followOnce is one exchange. more means that news is in force here, and the primary has yet to hear of it.
func (g *governor) followOnce(ctx context.Context) (more bool, err error) {
	s, honoured := g.honoured(ctx)
	b, err := json.Marshal(followRequest{
		Region: g.cfg.Self.Region, standing: standingOf(s), Honoured: honoured, Clock: time.Now().UnixMilli(), Level: s.Level,
	})
	if err != nil {
		return false, err
	}
	if b, err = g.callFar(ctx, MethodFollow, b); err != nil {
		return false, err
	}
	if len(b) == 0 {
		return false, errBadCall
	}
	switch kind, b := followKind(b[0]), b[1:]; kind {
	case followNothing:
		return false, nil
	case followState:
		return true, g.adoptRules(ctx, b)
	case followOther:
		return false, fmt.Errorf("%w: region %q takes %.64q for the primary", ErrNoPrimary, g.cfg.Primary, b)
	}
	return false, errBadCall
}

// adoptRules has the primary's reply agreed on here.
func (g *governor) adoptRules(ctx context.Context, b []byte) error {
	e, err := agreement.ParseFollow(b)
	if err != nil {
		return fmt.Errorf("read what the primary region has agreed on: %w", err)
	}
	before := g.State()
	r, err := g.propose(ctx, e)
	if err = errors.Join(err, r.Err); err != nil {
		return fmt.Errorf("follow the primary region: %w", err)
	}
	now := g.State()
	version := rulesVersion(now)
	switch world := before.Regions.World; {
	case !world.IsZero() && world != now.Regions.World:
		g.cfg.Logger.Warn("this region follows another one's rules from now on; those that it had of its own are gone",
			"primary", now.Regions.Primary, "version_before", rulesVersion(before), "rules_version", version)
	case world.IsZero() || rulesVersion(before) != version:
		g.cfg.Logger.Info("the primary region's rules are in force", "primary", now.Regions.Primary, "rules_version", version)
	}
	return nil
}

// patience is how long the primary may fail to answer before that is logged: an election there takes less.
const patience = 3 * time.Second

// noteFollowed records the outcome of an exchange with the primary, and logs a lasting change.
func (g *governor) noteFollowed(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if err == nil {
		if g.warned || g.followed.IsZero() {
			g.cfg.Logger.Info("the primary region is followed", "primary", g.cfg.Primary)
		}
		g.followed, g.failing, g.warned = now, time.Time{}, false
		return
	}
	if g.failing.IsZero() {
		g.failing = now
	}
	if now.Sub(g.failing) >= patience && !g.warned {
		g.warned = true
		g.cfg.Logger.Warn("can't follow the primary region: this region keeps the rules that it has",
			"primary", g.cfg.Primary, "error", err)
	}
}

// Following describes how this node's region follows the primary's rules.
type Following struct {
	Primary  string        // the region believed to be the primary
	Leads    bool          // this node follows it for its region, and Age is known
	Age      time.Duration // since the primary last answered, or since this node began to lead if it never did
	Recorded int64         // the newest version of the rules that all regions are known to use; 0 if there is none
}

// Following reports how this region follows the primary. In the primary, Leads is false.
func (c *Cluster) Following() Following {
	f := Following{Primary: c.cfg.Primary, Recorded: recordedVersion(c.Last())}
	g := c.governor
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.secondary() && !g.since.IsZero() {
		at := g.followed
		if at.IsZero() {
			at = g.since
		}
		f.Leads, f.Age = true, time.Since(at)
	}
	return f
}

// recordedVersion returns the newest recorded version, 0 if there is none.
func recordedVersion(s *agreement.State) (version int64) {
	for _, h := range s.Regions.Held {
		if h.At != 0 {
			version = h.Version // recorded versions come first, oldest first
		}
	}
	return version
}

// serveFollow answers another region's leader, as the leader of the primary, and records its report.
func (g *governor) serveFollow(_ context.Context, r request) ([]byte, error) {
	var q followRequest
	if err := json.Unmarshal(r.body, &q); err != nil || q.Region == "" || len(q.Region) > agreement.MaxRegionName || q.Honoured < 0 {
		return nil, errBadCall
	}
	own, s := g.cfg.Self.Region, g.State()
	switch err := g.requireGoverning(); {
	case !g.leads():
		return nil, err
	case q.Region == own:
		return nil, fmt.Errorf("%w: two clusters call their region %q", ErrRefused, own)
	case g.secondary():
		return append([]byte{byte(followOther)}, g.cfg.Primary...), nil
	case err != nil:
		return nil, err
	case rulesVersion(s) == 0:
		return nil, fmt.Errorf("%w: region %q has no rules yet", ErrNoLeader, own)
	case q.Level < s.Level:
		return nil, fmt.Errorf("%w: region %q is at feature level %d and the primary region at %d: run a later release there, and raise its level",
			ErrRefused, q.Region, q.Level, s.Level)
	}
	mine, theirs := standingOf(s), q.standing
	g.mu.Lock()
	noted := g.reports.note(q.Region, q.report(time.Now()))
	if mine.before(theirs) {
		g.ahead = theirs
	}
	g.mu.Unlock()
	if !noted {
		return nil, fmt.Errorf("%w: more than %d regions", ErrRefused, maxReports)
	}
	poke(g.wake)
	if theirs.World == mine.World && !theirs.before(mine) {
		return []byte{byte(followNothing)}, nil
	}
	return s.AppendFollow([]byte{byte(followState)})
}
