package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/rlnode/rlnode/partitions"
	"github.com/rlnode/rlnode/persist"
)

const (
	// debtsFile has what owners are yet to be told.
	debtsFile = "debts"
	// debtsInterval is how often it is written, if there is news: as often as counters.
	debtsInterval = time.Second
)

// loadCounters puts back the counters of the last checkpoint, and what is owed, and begins to write new ones.
func (s *server) loadCounters() error {
	config := persist.DefaultCountersConfig()
	config.Dir, config.Source, config.Now, config.Logger = s.dir, s.table, s.clock.Now, s.log
	store, err := persist.OpenCounters(config)
	if err != nil {
		return err
	}
	s.counters.Store(store)
	if err := s.load(store, "counters"); err != nil {
		return err
	}
	config.File, config.Source = persist.FallbackFile, s.mates.private.Table()
	if s.fallback, err = persist.OpenCounters(config); err != nil {
		return err
	}
	if err := s.load(s.fallback, "counters of what this node decides by itself"); err != nil {
		return err
	}
	s.debts = keepDebts(s.mates.keeper, persist.NewNote(s.dir, debtsFile), s.log)
	return nil
}

// load puts one file's counters back.
func (s *server) load(store *persist.Counters, what string) error {
	found, err := store.Load(s.clock.Now())
	if err != nil {
		return fmt.Errorf("load the %s: %w", what, err)
	}
	if found.Bad > 0 || found.NoRoom > 0 {
		s.log.Warn("not all "+what+" came back; those begin anew", "restored", found.Restored, "damaged", found.Bad,
			"no_room", found.NoRoom)
	} else {
		s.log.Info(what+" loaded", "restored", found.Restored, "expired", found.Expired, "took", found.Duration)
	}
	return store.Start()
}

// save writes most of what closeCounters would have to write.
func (s *server) save(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, saveBound)
	defer cancel()
	return errors.Join(s.counters.Load().Checkpoint(ctx), s.fallback.Checkpoint(ctx))
}

// checkpoint writes what has changed of the counters that this node owns, and returns when it is on disk.
func (s *server) checkpoint(ctx context.Context) error {
	c := s.counters.Load()
	if c == nil {
		return persist.ErrNotLoaded
	}
	return c.Checkpoint(ctx)
}

// closeCounters writes what has changed since the last time, and closes the files.
func (s *server) closeCounters(ctx context.Context) error {
	var errs []error
	if s.debts != nil {
		errs = append(errs, s.debts.close())
	}
	if c := s.counters.Load(); c != nil {
		errs = append(errs, c.Close(ctx))
	}
	if s.fallback != nil {
		errs = append(errs, s.fallback.Close(ctx))
	}
	return errors.Join(errs...)
}

// debtKeeper writes down what owners are yet to be told, so that a restart forgets it no more than counters.
type debtKeeper struct {
	keeper  *partitions.Keeper
	note    persist.Note
	log     *slog.Logger
	written uint64 // which debts are in the note; used by one goroutine at a time
	cancel  context.CancelFunc
	done    sync.WaitGroup
}

// keepDebts takes up what was written down before, and begins to write.
func keepDebts(k *partitions.Keeper, note persist.Note, log *slog.Logger) *debtKeeper {
	d := &debtKeeper{keeper: k, note: note, log: log}
	b, err := note.Read()
	if err == nil && len(b) > 0 {
		var n int
		if n, err = k.RestoreDebts(b); n > 0 {
			log.Info("owners are yet to be told what was admitted without them", "counters", n)
		}
	}
	if err != nil {
		log.Warn("what owners were yet to be told is lost", "error", err)
	}
	d.written = k.DebtsChanged()
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	d.done.Go(func() {
		tick := time.NewTicker(debtsInterval)
		defer tick.Stop()
		for failing := false; ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			err := d.write()
			if err != nil && !failing {
				log.Error("what owners are to be told is not written down", "error", err)
			}
			failing = err != nil
		}
	})
	return d
}

func (d *debtKeeper) write() error {
	changed := d.keeper.DebtsChanged()
	if changed == d.written {
		return nil
	}
	if err := d.note.Save(d.keeper.AppendDebts(nil)); err != nil {
		return err
	}
	d.written = changed
	return nil
}

// close writes what has changed since.
func (d *debtKeeper) close() error {
	d.cancel()
	d.done.Wait()
	return d.write()
}
