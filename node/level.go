package node

import (
	"context"
	"errors"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/cluster"
)

// Levels tells the feature level; see api.Levels.
func (n admin) Levels() api.LevelView {
	l := n.cluster.Levels()
	view := api.LevelView{Level: int64(l.Agreed), Highest: int64(l.Highest), Members: []api.MemberLevel{}}
	for _, one := range l.Members {
		view.Members = append(view.Members, api.MemberLevel{
			Name: one.Name, ID: one.ID.String(), Knows: int64(one.Knows), Release: one.Release, Zones: one.Zones,
		})
	}
	return view
}

// Raise raises the feature level; see api.Levels.
func (n admin) Raise(ctx context.Context, level int64) (int64, error) {
	raised, err := n.cluster.Raise(ctx, cluster.Level(level))
	if errors.Is(err, cluster.ErrRefused) {
		return 0, &worded{kind: api.ErrLevel, err: err}
	}
	return int64(raised), inWordsOfAPI(err)
}
