package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/rlnode/rlnode/internal/tick"
	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/ring"
)

const (
	// debtsFile holds the debts that their owners have not acknowledged yet.
	debtsFile = "debts"
	// debtsInterval is how often changed debts are written: as often as counters.
	debtsInterval = time.Second
)

// counterFiles keep counters across restarts; empty without a data directory.
// The first file has the counters of the node's table (see tableFile), the
// second its fallback counters.
type counterFiles []counterFile

// counterFile is a file of counters.
type counterFile struct {
	*persist.CounterFile
	content string // what it holds, for the log
}

// tableFile returns the file with the counters of the node's table. There must be one.
func (files counterFiles) tableFile() counterFile { return files[0] }

// openFiles opens the files of counters, and registers their last write for
// release. Load reads them later, because that takes long.
func (n *Node) openFiles() error {
	// These steps are called in reverse: the loops end before the files are closed.
	n.onRelease(n.handOverLateUsage)
	n.onRelease(n.closeFiles)
	n.onRelease(func(context.Context) error {
		n.cancel()
		<-n.loops.Close()
		return nil
	})

	if !n.checkpoints {
		return nil
	}

	config := persist.DefaultCounterFileConfig()
	config.Dir = n.dir
	config.Source = n.table
	config.Now = n.clock.Now
	config.Logger = n.log

	if err := n.openFile(config, "counters"); err != nil {
		return err
	}

	config.File = persist.FallbackFile
	config.Source = n.fallback
	return n.openFile(config, "fallback counters")
}

func (n *Node) openFile(config persist.CounterFileConfig, content string) error {
	store, err := persist.OpenCounterFile(config)
	if err == nil {
		n.files = append(n.files, counterFile{store, content})
	}
	return err
}

// load restores the counters of the last checkpoint, then those of fallback, then
// the debts, and starts to write each.
func (n *Node) load() error {
	for i, f := range n.files {
		found, err := f.Load(n.clock.Now())
		if err != nil {
			return fmt.Errorf("load the %s: %w", f.content, err)
		}

		if found.DamagedFrames > 0 || found.NoRoom > 0 {
			n.log.Warn("some "+f.content+" can't be restored and start afresh",
				"restored", found.Restored, "damaged_frames", found.DamagedFrames,
				"no_room", found.NoRoom)
		} else {
			level := slog.LevelDebug
			if found.Restored > 0 {
				level = slog.LevelInfo
			}
			n.log.Log(n.ctx, level, f.content+" loaded", "restored", found.Restored, "expired",
				found.Expired, "took", found.Duration)
		}

		// Slots are in the table's file. If it is incomplete, a node that has been in
		// a cluster had another file, or was killed before it had saved its slots.
		if i == 0 && (found.DamagedFrames > 0 || found.SetAside || found.Incomplete && n.isOld) {
			n.markSlotsLost()
		}

		if err := f.Start(); err != nil {
			return err
		}
	}

	n.loops.Go(n.sweep)
	if n.checkpoints {
		n.restoreDebts()
		n.loops.Go(n.followDebts)
	}

	return nil
}

// markSlotsLost makes this node grant no slot in place of one that its file may have had.
func (n *Node) markSlotsLost() {
	n.log.Warn("slots may be lost with the file of counters; no others are granted until the lost ones have certainly ended")
	now := n.clock.Now()
	for p := range ring.Partitions {
		n.table.MarkSlotsLost(now, p)
	}
}

// checkpoint writes what has changed in the table, copies of other nodes'
// counters included. It returns when that is on disk.
func (n *Node) checkpoint(ctx context.Context) error {
	if len(n.files) == 0 {
		return persist.ErrNotLoaded
	}
	return n.files.tableFile().Checkpoint(ctx)
}

// saveAhead writes the changed counters, so that closeFiles has little left to write.
func (n *Node) saveAhead(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()

	var errs []error
	for _, f := range n.files {
		errs = append(errs, f.Checkpoint(ctx))
	}
	return errors.Join(errs...)
}

// closeFiles writes what has changed since the last write, and closes the files.
func (n *Node) closeFiles(ctx context.Context) error {
	// What this node decided from now on would be in no file. Other nodes may still
	// ask it, if its partitions could not be handed over.
	n.keeper.StopDeciding()

	var errs []error
	// Until the debts are restored, the file has debts that were not read, and must
	// stay.
	if n.debtsRestored {
		errs = append(errs, n.writeDebts())
	}

	for _, f := range n.files {
		errs = append(errs, f.Close(ctx))
	}
	return errors.Join(errs...)
}

// debtsSaving tracks which of the keeper's debts are on disk. A restart loses no
// more of them than it loses of counters.
type debtsSaving struct {
	debtsRestored bool   // the file's debts are restored
	debtsWritten  uint64 // the keeper's DebtsChanged when the file was written; used by one goroutine at a time
}

func (n *Node) savedDebts() persist.SmallFile { return persist.NewSmallFile(n.dir, debtsFile) }

// restoreDebts restores the debts from their file.
func (n *Node) restoreDebts() {
	b, err := n.savedDebts().Read()
	if err == nil && len(b) > 0 {
		var count int
		count, err = n.keeper.RestoreDebts(b)
		if count > 0 {
			n.log.Info("debts restored; they will be reported to the owners", "counters", count)
		}
	}
	if err != nil {
		n.log.Warn("debts lost: what was admitted without the owners will never count there", "error", err)
	}

	n.debtsRestored = true
	n.debtsWritten = n.keeper.DebtsChanged()
}

// followDebts writes the debts as they change.
func (n *Node) followDebts() {
	failing := false
	for range tick.Every(n.ctx.Done(), debtsInterval) {
		err := n.writeDebts()
		if err != nil && !failing {
			n.log.Error("debts to owners can't be written to disk, retrying", "error", err)
		}
		failing = err != nil
	}
}

func (n *Node) writeDebts() error {
	// The number is read before the debts: what changes in between is then written
	// again the next time, and not missed.
	changed := n.keeper.DebtsChanged()
	if changed == n.debtsWritten {
		return nil
	}

	if err := n.savedDebts().Save(n.keeper.AppendDebts(nil)); err != nil {
		return err
	}
	n.debtsWritten = changed
	return nil
}
