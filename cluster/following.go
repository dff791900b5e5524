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

// followRequest is what the leader of a region tells the primary, and asks it: what is newer than this?
type followRequest struct {
	Region   string            `json:"region"`
	World    agreement.WorldID `json:"world"`
	Term     int64             `json:"term"`
	Version  int64             `json:"version"`
	Revision uint64            `json:"revision"`
	Honoured int64             `json:"honoured"` // see honoured
	Clock    int64             `json:"clock"`    // the leader's wall clock, Unix ms
	Level    agreement.Level   `json:"level"`    // the region's feature level
}

// line is the line of versions that a request is about.
func (q *followRequest) line() honour { return honour{q.World, q.Term, q.Honoured} }

// followKind is the first byte of the answer.
type followKind byte

const (
	followNothing followKind = iota // there is nothing newer
	followState                     // the rest is for agreement.ParseFollow
	followOther                     // this region is not the primary; the rest is the name of the one it goes by
)

// followPrimary asks the primary what is new, and has it agreed on here, as the leader of another region.
func (c *Cluster) followPrimary(ctx context.Context) error {
	for {
		more, err := c.followOnce(ctx)
		c.noteFollowed(err)
		if err != nil || !more {
			return err
		}
	}
}

// followOnce is one exchange; more says that what came is in force here, and the primary has yet to hear of it.
func (c *Cluster) followOnce(ctx context.Context) (more bool, err error) {
	s, honoured := c.honoured(ctx)
	r := s.Regions
	b, err := json.Marshal(followRequest{
		Region: c.cfg.Self.Region, World: r.World, Term: r.Term, Version: rulesVersion(s), Revision: r.Revision,
		Honoured: honoured, Clock: time.Now().UnixMilli(), Level: s.Level,
	})
	if err != nil {
		return false, err
	}
	if b, err = c.callFar(ctx, MethodFollow, b); err != nil {
		return false, err
	}
	if len(b) == 0 {
		return false, errBadCall
	}
	switch kind, b := followKind(b[0]), b[1:]; kind {
	case followNothing:
		return false, nil
	case followState:
		return true, c.adoptRules(ctx, b)
	case followOther:
		return false, fmt.Errorf("%w: region %q takes %.64q for it", ErrNoPrimary, c.primary(), b)
	}
	return false, errBadCall
}

// adoptRules has what the primary says agreed on here.
func (c *Cluster) adoptRules(ctx context.Context, b []byte) error {
	e, err := agreement.ParseFollow(b)
	if err != nil {
		return fmt.Errorf("read what the primary region has agreed on: %w", err)
	}
	before := c.State()
	r, err := c.propose(ctx, e)
	if err = errors.Join(err, r.Err); err != nil {
		return fmt.Errorf("follow the primary region: %w", err)
	}
	now := c.State()
	version := rulesVersion(now)
	switch world := before.Regions.World; {
	case !world.IsZero() && world != now.Regions.World:
		c.cfg.Logger.Warn("this region follows another one's rules from now on; those that it had of its own are gone",
			"primary", now.Regions.Primary, "version_before", rulesVersion(before), "rules_version", version)
	case world.IsZero() || rulesVersion(before) != version:
		c.cfg.Logger.Info("the primary region's rules are in force", "primary", now.Regions.Primary, "rules_version", version)
	}
	return nil
}

// patience is how long the primary does not answer before that is told: an election there takes less.
const patience = 3 * time.Second

// noteFollowed notes how an exchange with the primary went, and says it when that has changed for a while.
func (c *Cluster) noteFollowed(err error) {
	c.regional.mu.Lock()
	defer c.regional.mu.Unlock()
	r := &c.regional
	now := time.Now()
	if err == nil {
		if r.warned || r.followed.IsZero() {
			c.cfg.Logger.Info("the primary region is followed", "primary", c.primary())
		}
		r.followed, r.failing, r.warned = now, time.Time{}, false
		return
	}
	if r.failing.IsZero() {
		r.failing = now
	}
	if now.Sub(r.failing) >= patience && !r.warned {
		r.warned = true
		c.cfg.Logger.Warn("the primary region can't be followed: this region goes on with the rules that it has",
			"primary", c.primary(), "error", err)
	}
}

// Following is how this node's region does with the primary's rules.
type Following struct {
	Primary  string        // the region that is taken for the primary
	Leads    bool          // this node follows it for its region, and Age is known
	Age      time.Duration // since the primary answered; since this node leads if it never did
	Recorded int64         // the newest version of the rules that all regions are known to go by; 0: none
}

// Following tells it. In the primary Leads is false.
func (c *Cluster) Following() Following {
	f := Following{Primary: c.primary(), Recorded: recordedVersion(c.Last())}
	c.regional.mu.Lock()
	defer c.regional.mu.Unlock()
	if c.secondary() && !c.regional.since.IsZero() {
		at := c.regional.followed
		if at.IsZero() {
			at = c.regional.since
		}
		f.Leads, f.Age = true, time.Since(at)
	}
	return f
}

// recordedVersion is the newest version that is recorded, 0 for none.
func recordedVersion(s *agreement.State) int64 {
	for i := len(s.Regions.Held) - 1; i >= 0; i-- {
		if s.Regions.Held[i].At != 0 {
			return s.Regions.Held[i].Version
		}
	}
	return 0
}

// serveFollow answers a region's question, as the leader of the primary, and notes what the region tells.
func (c *Cluster) serveFollow(_ context.Context, r request) ([]byte, error) {
	var q followRequest
	if err := json.Unmarshal(r.body, &q); err != nil || q.Region == "" || len(q.Region) > agreement.MaxRegionName || q.Honoured < 0 {
		return nil, errBadCall
	}
	if !c.leads() {
		return nil, fmt.Errorf("%w here", ErrNoLeader)
	}
	s := c.State()
	switch own := c.cfg.Self.Region; {
	case q.Region == own:
		return nil, fmt.Errorf("%w: two clusters call their region %q", ErrRefused, own)
	case c.secondary() || s.Regions.Primary != own:
		other := c.primary()
		if other == own {
			return nil, fmt.Errorf("%w: region %q is about to become the primary", ErrNoLeader, own)
		}
		return append([]byte{byte(followOther)}, other...), nil
	}
	if rulesVersion(s) == 0 {
		return nil, fmt.Errorf("%w: region %q has no rules yet", ErrNoLeader, c.cfg.Self.Region)
	}
	if q.Level < s.Level {
		return nil, fmt.Errorf("%w: region %q is at feature level %d and the primary region at %d: run a later release there, and raise its level",
			ErrRefused, q.Region, q.Level, s.Level)
	}
	if !c.regional.reports.note(q.Region, q.line(), q.Clock, time.Now()) {
		return nil, fmt.Errorf("%w: more than %d regions", ErrRefused, maxReports)
	}
	c.regional.reports.noteLevel(q.Region, q.Level)
	mine, theirs := standingOf(s), standing{q.World, q.Term, q.Version, q.Revision}
	if theirs.world == mine.world && mine.before(theirs) {
		c.regional.mu.Lock()
		c.regional.ahead = theirs
		c.regional.mu.Unlock()
	}
	poke(c.regional.wake)
	if theirs.world == mine.world && !theirs.before(mine) {
		return []byte{byte(followNothing)}, nil
	}
	return s.AppendFollow([]byte{byte(followState)})
}

// standing is how far what is agreed about regions has come somewhere.
type standing struct {
	world    agreement.WorldID
	term     int64
	version  int64
	revision uint64
}

func standingOf(s *agreement.State) standing {
	return standing{s.Regions.World, s.Regions.Term, rulesVersion(s), s.Regions.Revision}
}

// before says whether o is later, in the same world.
func (a standing) before(o standing) bool {
	return cmp.Or(cmp.Compare(a.term, o.term), cmp.Compare(a.version, o.version), cmp.Compare(a.revision, o.revision)) < 0
}
