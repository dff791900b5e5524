package admin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/cluster"
)

// memberTime bounds a change of members. It is shorter than the write timeout,
// so that the caller still gets the outcome.
const memberTime = writeTimeout - 5*time.Second

// leave removes this node from the cluster. Until that is done, the node
// decides checks by asking other nodes. The departure continues even if the
// caller does not wait, because half of one is of no use. The last node leaves
// only with ?force=true.
func (s *Server) leave(w http.ResponseWriter, r *http.Request) error {
	force, err := choiceParam(r.URL.Query(), "force", "false", "true")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), memberTime)
	defer cancel()

	last, err := s.config.Membership.Leave(ctx, force == "true", callerName(r))
	if err != nil {
		return fmt.Errorf("leave cluster: %w", err)
	}
	s.doors.Logger.Info("this node has left the cluster", "last", last, "by", callerWithAddress(r))
	return s.reply(w, struct {
		Left string `json:"left"`
		Last bool   `json:"last"`
	}{s.doors.Node, last})
}

// removeMember removes a node that is gone for good from the cluster; with
// ?force=true, the node may be alive.
func (s *Server) removeMember(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	if len(name) > codec.MaxValue {
		return api.Errorf(api.BadValue, "name must not have more than %d bytes", codec.MaxValue)
	}

	forced, err := choiceParam(r.URL.Query(), "force", "false", "true")
	if err != nil {
		return err
	}

	force := forced == "true"
	ctx, cancel := context.WithTimeout(r.Context(), memberTime)
	defer cancel()

	if err := s.config.Membership.Remove(ctx, name, force, callerName(r)); err != nil {
		return fmt.Errorf("remove %q: %w", api.Excerpt(name), err)
	}

	s.doors.Logger.Info("a member was removed", "name", name, "force", force, "by", callerWithAddress(r))
	s.sendJSON(w, append(codec.AppendString([]byte(`{"removed":`), name), '}'))
	return nil
}

// getLevel answers with the agreed feature level, and the levels that the members know.
func (s *Server) getLevel(w http.ResponseWriter, _ *http.Request) error {
	return s.reply(w, s.config.Levels.Levels())
}

// raiseLevel raises the feature level, irrevocably: to ?to=N, or to the highest
// that all members know.
func (s *Server) raiseLevel(w http.ResponseWriter, r *http.Request) error {
	to := uint64(0)
	if text := r.URL.Query().Get("to"); text != "" {
		var err error
		to, err = strconv.ParseUint(text, 10, 31)
		if err != nil || to < 1 {
			return api.Errorf(api.BadValue, "to must be a number from 1 to %d", math.MaxInt32)
		}
	}

	ctx, cancel := context.WithTimeout(r.Context(), memberTime)
	defer cancel()

	level, err := s.config.Levels.Raise(ctx, cluster.Level(to))
	if errors.Is(err, cluster.ErrRefused) {
		return &api.Error{Code: api.LevelRefused, Detail: err.Error(), Err: err}
	}
	if err != nil {
		return fmt.Errorf("raise the feature level: %w", err)
	}

	s.doors.Logger.Info("the feature level was raised", "level", level, "by", callerWithAddress(r))
	return s.reply(w, struct {
		Level cluster.Level `json:"level"`
	}{level})
}

// removeRegion removes a region that is gone for good.
func (s *Server) removeRegion(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	if len(name) > codec.MaxValue {
		return api.Errorf(api.BadValue, "name must not have more than %d bytes", codec.MaxValue)
	}

	version, err := s.config.Regions.RemoveRegion(r.Context(), name)
	if err != nil {
		return writeError(fmt.Errorf("remove region %q: %w", api.Excerpt(name), err))
	}

	s.doors.Logger.Info("a region was removed", "region", name, "by", callerWithAddress(r))
	return s.reply(w, struct {
		Removed string `json:"removed"`
		Version int64  `json:"version"`
	}{name, version})
}
