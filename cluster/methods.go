package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/authority"
	"github.com/rlnode/rlnode/cluster/peer"
)

// Methods of this package's calls between nodes, from 1 to 31. This package
// also serves those of package authority.
const (
	MethodPromise        peer.Method = 1 + iota // promiseRequest → promiseReply
	MethodIsAttemptValid                        // attempt → bool
	MethodInvite                                // invitation → nothing
	MethodWriteRules                            // an agreement.WriteRules → agreement.Result; also from other regions
	MethodRemove                                // removalRequest → nothing
	MethodFollow                                // followRequest → followKind and its data; from other regions
	// MethodProbePrimary: nothing → nothing; fails unless the node leads the
	// primary; from other regions
	MethodProbePrimary
	MethodRemoveRegion // a region's name → agreement.Result; also from other regions
	MethodFollowNow    // nothing → nothing
	MethodRaise        // a feature level → the agreed level
	MethodWriteEntries // entriesWrite → entriesReply; also from other regions
)

// crossRegionMethods lists the methods that other regions may call. The leader serves all of them.
var crossRegionMethods = [...]peer.Method{MethodFollow, MethodProbePrimary, MethodWriteRules,
	MethodRemoveRegion, MethodWriteEntries}

// Codes of failed calls. All but codeUnknown mean that nothing was changed.
const (
	codeNoLeader peer.Code = 1 + iota
	codeUnknown
	codeRefused
	codeNotFound
	codeBusy
	codeNoPrimary
)

// kindsByCode maps codes to errors on both ends. The sender uses the first match.
var kindsByCode = []struct {
	code peer.Code
	kind error
}{
	{codeUnknown, ErrOutcomeUnknown}, {codeNoPrimary, ErrNoPrimary},
	{codeNoLeader, ErrLeaderUnavailable}, {codeNoLeader, authority.ErrNotLeading},
	{codeRefused, ErrRefused}, {codeNotFound, ErrNotFound},
	// These two translate only received codes: serveWith sends codeBusy itself, and
	// package peer sends CodeNoMethod.
	{codeBusy, ErrLeaderUnavailable}, {peer.CodeNoMethod, ErrRefused},
}

// errBadCall means that a call is malformed or has invalid arguments.
var errBadCall = fmt.Errorf("%w: the call can't be read", ErrRefused)

// request is an incoming call.
type request struct {
	from peer.Identity
	body []byte
}

// handler answers a call for this package.
type handler func(context.Context, request) ([]byte, error)

// jsonHandler is a handler whose requests and replies are JSON.
func jsonHandler[In, Out any](serve func(context.Context, In) (Out, error)) handler {
	return func(ctx context.Context, r request) ([]byte, error) {
		var in In
		if err := json.Unmarshal(r.body, &in); err != nil {
			return nil, errBadCall
		}
		out, err := serve(ctx, in)
		if err != nil {
			return nil, err
		}
		return json.Marshal(out)
	}
}

// noBody is an empty request or reply.
type noBody struct{}

// codeOf returns the code and text with which to send an error.
func codeOf(err error) (peer.Code, string) {
	if remote, ok := errors.AsType[*peer.RemoteError](err); ok {
		return remote.Code, remote.Detail
	}
	for _, k := range kindsByCode {
		if errors.Is(err, k.kind) {
			return k.code, err.Error()
		}
	}
	return codeUnknown, err.Error()
}

// callError translates the error of a call into this package's errors.
func callError(err error) error {
	remote, isRemote := errors.AsType[*peer.RemoteError](err)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, peer.ErrBusy), errors.Is(err, peer.ErrTooLarge), errors.Is(err, peer.ErrNotSent):
		return fmt.Errorf("%w: %w", ErrLeaderUnavailable, err) // nothing was sent
	case isRemote:
		for _, k := range kindsByCode {
			if remote.Code == k.code {
				return &agreement.ReportedError{Text: remote.Detail, Kind: k.kind}
			}
		}
	}

	return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
}
