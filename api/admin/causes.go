package admin

import (
	"errors"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/usage"
)

// ErrNoCluster means that this node has neither joined nor founded a cluster yet.
var ErrNoCluster = errors.New("this node has no cluster yet that it could leave; stop it")

// ErrOnlyMember means that no other member could take over this node's rules and bills.
var ErrOnlyMember = errors.New("this is the last node: it has the only copy of rules and bills")

// causes maps the errors of what only this plane does to codes.
var causes = []struct {
	err  error
	code api.Code
}{
	{cluster.ErrOutcomeUnknown, api.Timeout},
	{cluster.ErrNoPrimary, api.NoPrimary},
	{cluster.ErrLeaderUnavailable, api.NoLeader},
	{cluster.ErrNotFound, api.NotFound},
	{cluster.ErrRefused, api.Refused},
	{ErrOnlyMember, api.OnlyMember},
	{ErrNoCluster, api.NotReady},
	{usage.ErrNotHandedOver, api.TryAgain},
}

// asError returns err as an Error with a code.
func asError(err error) *api.Error {
	e := api.AsError(err)
	if e.Code != api.Internal {
		return e
	}
	for _, cause := range causes {
		if errors.Is(err, cause.err) {
			return &api.Error{Code: cause.code, Detail: err.Error(), Err: err}
		}
	}
	return e
}
