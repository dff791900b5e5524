package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rlnode/rlnode/persist"
)

const (
	// debtsFile has what owners are yet to be told.
	debtsFile = "debts"
	// debtsInterval is how often it is written, if there is news: as often as counters.
	debtsInterval = time.Second
)

// counterFiles are where counters outlive the process; none without a folder. The first has those that this node owns, the
// second those of what it decides by itself.
type counterFiles []counterFile

type counterFile struct {
	*persist.Counters
	what string
}

// openFiles opens the files of counters, and says how all of them are written at the end. What is in them is loaded later: that
// takes long.
func (n *Node) openFiles() error {
	n.atEnd(n.handLast)
	n.atEnd(n.closeFiles)
	n.atEnd(func(context.Context) error {
		n.cancel()
		n.loops.Wait()
		return nil
	})
	if !n.checkpoints {
		return nil
	}
	config := persist.DefaultCountersConfig()
	config.Dir, config.Source, config.Now, config.Logger = n.dir, n.table, n.clock.Now, n.log
	if err := n.openFile(config, "counters"); err != nil {
		return err
	}
	config.File, config.Source = persist.FallbackFile, n.private
	return n.openFile(config, "counters of what this node decides by itself")
}

func (n *Node) openFile(config persist.CountersConfig, what string) error {
	store, err := persist.OpenCounters(config)
	if err == nil {
		n.files = append(n.files, counterFile{store, what})
	}
	return err
}

// load puts back the counters of the last checkpoint, and what is owed, and begins to write new ones.
func (n *Node) load() error {
	for _, f := range n.files {
		found, err := f.Load(n.clock.Now())
		if err != nil {
			return fmt.Errorf("load the %s: %w", f.what, err)
		}
		if found.Bad > 0 || found.NoRoom > 0 {
			n.log.Warn("not all "+f.what+" came back; those begin anew", "restored", found.Restored, "damaged_frames", found.Bad,
				"no_room", found.NoRoom)
		} else {
			n.log.Info(f.what+" loaded", "restored", found.Restored, "expired", found.Expired, "took", found.Duration)
		}
		if err := f.Start(); err != nil {
			return err
		}
	}
	n.loops.Go(n.sweep)
	if n.checkpoints {
		n.recallDebts()
		n.loops.Go(n.followDebts)
	}
	return nil
}

// checkpoint writes what has changed of the counters that this node owns, and returns when it is on disk.
func (n *Node) checkpoint(ctx context.Context) error {
	if len(n.files) == 0 {
		return persist.ErrNotLoaded
	}
	return n.files[0].Checkpoint(ctx)
}

// save writes most of what closeFiles would have to write.
func (n *Node) save(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, saveBound)
	defer cancel()
	var errs []error
	for _, f := range n.files {
		errs = append(errs, f.Checkpoint(ctx))
	}
	return errors.Join(errs...)
}

// closeFiles writes what has changed since the last time, and closes the files.
func (n *Node) closeFiles(ctx context.Context) error {
	var errs []error
	if n.debtsKnown {
		errs = append(errs, n.writeDebts())
	}
	for _, f := range n.files {
		errs = append(errs, f.Close(ctx))
	}
	return errors.Join(errs...)
}

// debts is how far what owners are yet to be told is written down, so that a restart forgets it no more than counters.
type debts struct {
	debtsKnown   bool   // what was written down before is taken up
	debtsWritten uint64 // which of them are in the file; used by one goroutine at a time
}

func (n *Node) debtsNote() persist.Note { return persist.NewNote(n.dir, debtsFile) }

// recallDebts takes up what was written down before.
func (n *Node) recallDebts() {
	b, err := n.debtsNote().Read()
	if err == nil && len(b) > 0 {
		var count int
		if count, err = n.keeper.RestoreDebts(b); count > 0 {
			n.log.Info("owners are yet to be told what was admitted without them", "counters", count)
		}
	}
	if err != nil {
		n.log.Warn("what owners were yet to be told is lost", "error", err)
	}
	n.debtsKnown, n.debtsWritten = true, n.keeper.DebtsChanged()
}

// followDebts writes them down as they change.
func (n *Node) followDebts() {
	tick := time.NewTicker(debtsInterval)
	defer tick.Stop()
	for failing := false; ; {
		select {
		case <-n.ctx.Done():
			return
		case <-tick.C:
		}
		err := n.writeDebts()
		if err != nil && !failing {
			n.log.Error("what owners are to be told is not written down", "error", err)
		}
		failing = err != nil
	}
}

func (n *Node) writeDebts() error {
	changed := n.keeper.DebtsChanged()
	if changed == n.debtsWritten {
		return nil
	}
	if err := n.debtsNote().Save(n.keeper.AppendDebts(nil)); err != nil {
		return err
	}
	n.debtsWritten = changed
	return nil
}
