package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/authority"
	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/rules/entries"
)

// followRequest is a region leader's report to the primary. It asks for anything newer.
type followRequest struct {
	Region string `json:"region"`
	rulesPosition
	Honoured int64            `json:"honoured"` // see honourProgress.honoured
	Clocks   authority.Clocks `json:"clocks"`   // the region's
	Level    agreement.Level  `json:"level"`    // the region's feature level
	Entries  entriesPosition  `json:"entries"`  // the entries that it has
}

func (r *followRequest) report(now time.Time) regionReport {
	honoured := rulesPosition{World: r.World, PrimaryEpoch: r.PrimaryEpoch, Version: r.Honoured}
	return regionReport{rulesPosition: honoured, level: r.Level, clocks: r.Clocks, at: now}
}

// followKind is the first byte of the reply.
type followKind byte

const (
	followUpToDate followKind = iota // the caller is up to date
	followState                      // the newer state follows, for agreement.ParseAdopt
	// followNotPrimary: this region is not the primary; the name of the region that
	// it follows comes next
	followNotPrimary
	// followEntries: the rules are up to date; changes of entries follow: an
	// agreement.AdoptEntries in JSON
	followEntries
)

// followPrimary, on the leader of a secondary region, asks the primary for news
// and adopts it in this region. After each piece of news, it asks again at
// once, which also reports the progress.
func (sr *sharedRules) followPrimary(ctx context.Context) error {
	for {
		more, err := sr.followOnce(ctx)
		sr.recordFollowOutcome(err)
		if err != nil || !more {
			return err
		}
	}
}

// followOnce makes one exchange with the primary. more means that this region
// has adopted something new, and has yet to report that to the primary.
func (sr *sharedRules) followOnce(ctx context.Context) (more bool, err error) {
	s, honoured, clocks := sr.confirmHonoured(ctx)
	question, err := json.Marshal(followRequest{
		Region: sr.config.Self.Region, rulesPosition: positionOf(s), Honoured: honoured,
		Clocks: clocks, Level: s.Level,
		Entries: sr.paging.position(s.Entries),
	})
	if err != nil {
		return false, err
	}

	answer, err := sr.callPrimaryRegion(ctx, MethodFollow, question)
	if err != nil {
		return false, err
	}
	if len(answer) == 0 {
		return false, errBadCall
	}

	content := answer[1:]
	switch followKind(answer[0]) {
	case followUpToDate:
		return false, nil
	case followState:
		return true, sr.adoptRules(ctx, content)
	case followEntries:
		return true, sr.adoptEntries(ctx, content)
	case followNotPrimary:
		return false, fmt.Errorf("%w: region %q considers %.64q the primary", ErrNoPrimary, sr.config.Primary, content)
	}

	return false, errBadCall
}

// adoptRules makes this region agree on the primary's reply.
func (sr *sharedRules) adoptRules(ctx context.Context, b []byte) error {
	e, err := agreement.ParseAdopt(b)
	if err != nil {
		return fmt.Errorf("parse the primary region's state: %w", err)
	}

	before := sr.State()
	_, err = sr.agree(ctx, e)
	if err != nil {
		return fmt.Errorf("follow the primary region: %w", err)
	}

	after := sr.State()
	version := rulesVersion(after)

	world := before.Regions.World
	switch {
	case !world.IsZero() && world != after.Regions.World:
		sr.config.Logger.Warn("this region now follows the primary's rules; its own rules are gone",
			"primary", after.Regions.Primary, "version_before", rulesVersion(before), "rules_version", version)
	case world.IsZero() || rulesVersion(before) != version:
		sr.config.Logger.Info("the primary region's rules are in force",
			"primary", after.Regions.Primary, "rules_version", version)
	}

	return nil
}

// followPatience is how long the primary may fail to answer before this node
// logs the failure. It is longer than an election in the primary takes.
const followPatience = 3 * time.Second

// recordFollowOutcome records the outcome of an exchange with the primary, and
// logs a lasting change.
func (sr *sharedRules) recordFollowOutcome(err error) {
	sr.mu.Lock()
	defer sr.mu.Unlock()

	now := time.Now()
	if err == nil {
		if sr.failureLogged || sr.primaryAnsweredAt.IsZero() {
			sr.config.Logger.Info("this region follows the primary region", "primary", sr.config.Primary)
		}
		sr.primaryAnsweredAt = now
		sr.primaryFailingSince = time.Time{}
		sr.failureLogged = false
		return
	}

	if sr.primaryFailingSince.IsZero() {
		sr.primaryFailingSince = now
	}

	if now.Sub(sr.primaryFailingSince) >= followPatience && !sr.failureLogged {
		sr.failureLogged = true
		sr.config.Logger.Warn("can't follow the primary region: this region keeps its current rules",
			"primary", sr.config.Primary, "error", err)
	}
}

// Following describes how this node's region follows the primary's rules.
type Following struct {
	Primary  string        // the region configured as the primary
	Leads    bool          // this node follows the primary on behalf of its region, so Age is known
	Age      time.Duration // since the primary last answered or, if it never did, since this node began to lead
	Recorded int64         // the newest version of the rules that all regions are known to use; 0 if there is none
}

// Following describes how this region follows the primary. In the primary, Leads is false.
func (c *Cluster) Following() Following {
	f := Following{Primary: c.config.Primary, Recorded: recordedVersion(c.StateInUse())}
	sr := c.sharedRules
	sr.mu.Lock()
	defer sr.mu.Unlock()

	if !c.isSecondary() || sr.leadingSince.IsZero() {
		return f
	}

	at := sr.primaryAnsweredAt
	if at.IsZero() {
		at = sr.leadingSince
	}
	f.Leads = true
	f.Age = time.Since(at)
	return f
}

// recordedVersion returns the newest recorded version of the rules, or 0 if there is none.
func recordedVersion(s *agreement.State) (version int64) {
	for _, h := range s.Regions.Held {
		if h.RecordedAt != 0 {
			version = h.Version // recorded versions come first, oldest first
		}
	}
	return version
}

// serveFollow, on the leader of the primary, records another region's report and answers it.
func (sr *sharedRules) serveFollow(_ context.Context, r request) ([]byte, error) {
	var q followRequest
	if err := json.Unmarshal(r.body, &q); err != nil || q.Region == "" ||
		len(q.Region) > agreement.MaxRegionName || q.Honoured < 0 {
		return nil, errBadCall
	}

	region := sr.config.Self.Region
	s := sr.State()
	switch {
	case !sr.leads():
		return nil, fmt.Errorf("%w: this node does not lead", ErrLeaderUnavailable)
	case q.Region == region:
		return nil, fmt.Errorf("%w: two clusters call their region %q", ErrRefused, region)
	case sr.isSecondary():
		return append([]byte{byte(followNotPrimary)}, sr.config.Primary...), nil
	}

	if err := sr.checkFollow(&q, s); err != nil {
		return nil, err
	}

	mine, theirs := positionOf(s), q.rulesPosition
	sr.mu.Lock()
	stored := sr.reports.add(q.Region, q.report(time.Now()))
	// If this leader is really behind, runPrimaryRound begins a new primary epoch.
	if mine.isBefore(theirs) {
		sr.regionAhead = theirs
	}
	sr.mu.Unlock()

	if !stored {
		return nil, fmt.Errorf("%w: more than %d regions", ErrRefused, maxReports)
	}

	wake.Signal(sr.wake)
	if theirs.World == mine.World && !theirs.isBefore(mine) {
		return encodeEntriesNews(s.Entries, q.Entries)
	}

	return s.AppendAdopt([]byte{byte(followState)})
}

// checkFollow returns an error unless this node leads the primary, which is in
// state s, and the region of q may follow it.
func (sr *sharedRules) checkFollow(q *followRequest, s *agreement.State) error {
	if err := sr.requirePrimaryLeader(); err != nil {
		return err
	}

	switch {
	case rulesVersion(s) == 0:
		return fmt.Errorf("%w: region %q has no rules yet", ErrLeaderUnavailable, sr.config.Self.Region)
	case q.Level < s.Level:
		return fmt.Errorf("%w: region %q is at feature level %d and the primary region at %d: run a later release there, and raise its level",
			ErrRefused, q.Region, q.Level, s.Level)
	}
	return nil
}

// encodeEntriesNews returns the reply to a region whose rules are up to date.
func encodeEntriesNews(s *entries.State, at entriesPosition) ([]byte, error) {
	news := entriesNewsFor(s, at)
	if news == nil {
		return []byte{byte(followUpToDate)}, nil
	}
	b, err := json.Marshal(news)
	if err != nil {
		return nil, err
	}
	return append([]byte{byte(followEntries)}, b...), nil
}

// serveFollowNow makes the leader of a secondary region ask the primary for
// news, without waiting for the answer.
func (sr *sharedRules) serveFollowNow(context.Context, noBody) (noBody, error) {
	if !sr.leads() {
		return noBody{}, fmt.Errorf("%w: this node does not lead", ErrLeaderUnavailable)
	}
	wake.Signal(sr.wake)
	return noBody{}, nil
}
