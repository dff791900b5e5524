package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/rlnode/rlnode/cluster"
)

// memberTime bounds a change of the members: whoever asked for it is to hear how it went.
const memberTime = adminWriteTimeout - 5*time.Second

// leave takes this node out of the cluster. Checks are decided meanwhile, by asking others. It goes on when whoever
// asked for it does not wait: half of it would help nobody.
func (s *adminServer) leave(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), memberTime)
	defer cancel()
	if err := s.api.config.Membership.Leave(ctx); err != nil {
		return fmt.Errorf("leave cluster: %w", err)
	}
	s.log.Info("left the cluster", "by", writer(r))
	s.sendJSON(w, append(appendString([]byte(`{"left":`), s.api.config.Node), '}'))
	return nil
}

// removeMember takes a node that is gone for good out of the cluster; with ?force=true also one that is alive.
func (s *adminServer) removeMember(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	if len(name) > maxValue {
		return errorf(BadValue, "name must not have more than %d bytes", maxValue)
	}
	forced, err := choice(r.URL.Query(), "force", "false", "true")
	if err != nil {
		return err
	}
	force := forced == "true"
	ctx, cancel := context.WithTimeout(r.Context(), memberTime)
	defer cancel()
	if err := s.api.config.Membership.Remove(ctx, name, force); err != nil {
		return fmt.Errorf("remove %q: %w", excerpt(name), err)
	}
	s.log.Info("removed a member", "name", name, "force", force, "by", writer(r))
	s.sendJSON(w, append(appendString([]byte(`{"removed":`), name), '}'))
	return nil
}

// getLevel answers which feature level is agreed on, and who knows which.
func (s *adminServer) getLevel(w http.ResponseWriter, _ *http.Request) error {
	return s.reply(w, s.api.config.Levels.Levels())
}

// raiseLevel raises the feature level, for good: to ?to=N, or as high as all members know.
func (s *adminServer) raiseLevel(w http.ResponseWriter, r *http.Request) error {
	to := uint64(0)
	if text := r.URL.Query().Get("to"); text != "" {
		var err error
		if to, err = strconv.ParseUint(text, 10, 31); err != nil || to < 1 {
			return errorf(BadValue, "to must be a number from 1 to %d", math.MaxInt32)
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), memberTime)
	defer cancel()
	level, err := s.api.config.Levels.Raise(ctx, cluster.Level(to))
	if errors.Is(err, cluster.ErrRefused) {
		return &Error{Code: LevelRefused, Detail: err.Error(), Err: err}
	}
	if err != nil {
		return fmt.Errorf("raise the feature level: %w", err)
	}
	s.log.Info("raised the feature level", "level", level, "by", writer(r))
	return s.reply(w, struct {
		Level cluster.Level `json:"level"`
	}{level})
}

// removeRegion takes a region that is gone for good out of the world.
func (s *adminServer) removeRegion(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	if len(name) > maxValue {
		return errorf(BadValue, "name must not have more than %d bytes", maxValue)
	}
	version, err := s.api.config.Regions.RemoveRegion(r.Context(), name)
	if err != nil {
		return writeError(fmt.Errorf("remove region %q: %w", excerpt(name), err))
	}
	s.log.Info("removed a region", "region", name, "by", writer(r))
	return s.reply(w, struct {
		Removed string `json:"removed"`
		Version int64  `json:"version"`
	}{name, version})
}
