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

// standing is how far what is agreed about regions has come somewhere.
type standing struct {
	World    agreement.WorldID `json:"world"`
	Term     int64             `json:"term"`
	Version  int64             `json:"version"`
	Revision uint64            `json:"revision"`
}

func standingOf(s *agreement.State) standing {
	return standing{s.Regions.World, s.Regions.Term, rulesVersion(s), s.Regions.Revision}
}

// sameLine says whether the later of two versions has the higher number.
func (a standing) sameLine(o standing) bool { return a.World == o.World && a.Term == o.Term }

// before says whether o is later, in the same world.
func (a standing) before(o standing) bool {
	return a.World == o.World &&
		cmp.Or(cmp.Compare(a.Term, o.Term), cmp.Compare(a.Version, o.Version), cmp.Compare(a.Revision, o.Revision)) < 0
}

// followRequest is what the leader of a region reports to the primary, with the question: what is newer than this?
type followRequest struct {
	Region string `json:"region"`
	standing
	Honoured int64           `json:"honoured"` // see honoured
	Clock    int64           `json:"clock"`    // the leader's wall clock, Unix ms
	Level    agreement.Level `json:"level"`    // the region's feature level
}

// followKind is the first byte of the answer.
type followKind byte

const (
	followNothing followKind = iota // there is nothing newer
	followState                     // the rest is for agreement.ParseFollow
	followOther                     // this region is not the primary; the rest is the name of the one it goes by
)

// followPrimary asks the primary what is new, and has it agreed on here, as the leader of another region. What came is reported
// at once.
func (c *governor) followPrimary(ctx context.Context) error {
	for {
		more, err := c.followOnce(ctx)
		c.noteFollowed(err)
		if err != nil || !more {
			return err
		}
	}
}

// followOnce is one exchange; more says that what came is in force here, and the primary has yet to hear of it.
func (c *governor) followOnce(ctx context.Context) (more bool, err error) {
	s, honoured := c.honoured(ctx)
	b, err := json.Marshal(followRequest{
		Region: c.cfg.Self.Region, standing: standingOf(s), Honoured: honoured, Clock: time.Now().UnixMilli(), Level: s.Level,
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
		return false, fmt.Errorf("%w: region %q takes %.64q for it", ErrNoPrimary, c.cfg.Primary, b)
	}
	return false, errBadCall
}

// adoptRules has what the primary says agreed on here.
func (c *governor) adoptRules(ctx context.Context, b []byte) error {
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

// patience is how long the primary does not answer before that is logged: an election there takes less.
const patience = 3 * time.Second

// noteFollowed notes how an exchange with the primary went, and says it when that has changed for a while.
func (c *governor) noteFollowed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if err == nil {
		if c.warned || c.followed.IsZero() {
			c.cfg.Logger.Info("the primary region is followed", "primary", c.cfg.Primary)
		}
		c.followed, c.failing, c.warned = now, time.Time{}, false
		return
	}
	if c.failing.IsZero() {
		c.failing = now
	}
	if now.Sub(c.failing) >= patience && !c.warned {
		c.warned = true
		c.cfg.Logger.Warn("the primary region can't be followed: this region goes on with the rules that it has",
			"primary", c.cfg.Primary, "error", err)
	}
}

// Following is how this node's region does with the primary's rules.
type Following struct {
	Primary  string        // the region that is taken for the primary
	Leads    bool          // this node follows it for its region, and Age is known
	Age      time.Duration // since the primary answered; since this node leads if it never did
	Recorded int64         // the newest version of the rules that all regions are known to go by; 0: none
}

// Following reports it. In the primary Leads is false.
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

// recordedVersion is the newest version that is recorded, 0 for none.
func recordedVersion(s *agreement.State) (version int64) {
	for _, h := range s.Regions.Held {
		if h.At != 0 {
			version = h.Version // the recorded ones come first, oldest first
		}
	}
	return version
}

// serveFollow answers a region's question, as the leader of the primary, and notes what the region reports.
func (c *governor) serveFollow(_ context.Context, r request) ([]byte, error) {
	var q followRequest
	if err := json.Unmarshal(r.body, &q); err != nil || q.Region == "" || len(q.Region) > agreement.MaxRegionName || q.Honoured < 0 {
		return nil, errBadCall
	}
	own, s := c.cfg.Self.Region, c.State()
	switch err := c.governs(); {
	case !c.leads():
		return nil, err
	case q.Region == own:
		return nil, fmt.Errorf("%w: two clusters call their region %q", ErrRefused, own)
	case c.secondary():
		return append([]byte{byte(followOther)}, c.cfg.Primary...), nil
	case err != nil:
		return nil, err
	case rulesVersion(s) == 0:
		return nil, fmt.Errorf("%w: region %q has no rules yet", ErrNoLeader, own)
	case q.Level < s.Level:
		return nil, fmt.Errorf("%w: region %q is at feature level %d and the primary region at %d: run a later release there, and raise its level",
			ErrRefused, q.Region, q.Level, s.Level)
	}
	mine, theirs := standingOf(s), q.standing
	c.mu.Lock()
	noted := c.reports.note(q.Region, q.report(time.Now()))
	if mine.before(theirs) {
		c.ahead = theirs
	}
	c.mu.Unlock()
	if !noted {
		return nil, fmt.Errorf("%w: more than %d regions", ErrRefused, maxReports)
	}
	poke(c.wake)
	if theirs.World == mine.World && !theirs.before(mine) {
		return []byte{byte(followNothing)}, nil
	}
	return s.AppendFollow([]byte{byte(followState)})
}
