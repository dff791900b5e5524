package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/rules"
)

// ruleStore lets the API write to the store of a single node, in its own words.
type ruleStore struct{ store *persist.Rules }

func (r ruleStore) Write(ctx context.Context, change rules.Change, o api.WriteOptions) (int64, error) {
	version, err := r.store.Write(ctx, change, persist.WriteOptions{IfMatch: o.IfMatch, By: o.By})
	if errors.Is(err, persist.ErrConflict) {
		err = fmt.Errorf("%w: %w", api.ErrConflict, err)
	}
	return version, err
}

func (r ruleStore) Versions(context.Context) ([]api.RuleVersion, error) {
	kept := r.store.Versions()
	list := make([]api.RuleVersion, len(kept))
	for i, v := range kept {
		list[i] = api.RuleVersion{Version: v.Number, When: v.When, By: v.By, What: v.What, Size: int64(v.Size)}
	}
	return list, nil
}

func (r ruleStore) Version(_ context.Context, n int64) (*rules.Document, error) {
	doc, err := r.store.Version(n)
	if errors.Is(err, rules.ErrNotFound) {
		err = fmt.Errorf("%w: %w", api.ErrNoVersion, err)
	}
	return doc, err
}

// checkpoints tells the API how saving the counters goes.
func (s *server) checkpoints() api.CheckpointStatus {
	c := s.counters.Load()
	if c == nil {
		return api.CheckpointStatus{}
	}
	status := c.Status()
	return api.CheckpointStatus{
		Last: status.Completed, Took: status.Duration, Counters: status.Counters, Failures: int64(status.Failures), Err: status.Err,
		FileSize: status.FileSize, SetAside: status.SetAside,
	}
}
