package main

import (
	"os"
	"testing"
)

// TestMain lets this program be the child, too.
func TestMain(m *testing.M) {
	if os.Getenv("STOP5_FILE") != "" {
		main()
	}
	os.Exit(m.Run())
}

func TestAKillLosesTheBufferAndAPowerCutWhatWasNotSynced(t *testing.T) {
	if left, err := afterKill("buffer"); err != nil || left >= pets {
		t.Errorf("after a kill, the buffered file has %d of %d pets, %v", left, pets, err)
	}
	if left, err := afterKill("write"); err != nil || left != pets {
		t.Errorf("after a kill, the file that was written has %d of %d pets, %v", left, pets, err)
	}
	unsynced, each, shared := storeThreeWays()
	if unsynced.afterPowerCut() != 0 || each.afterPowerCut() != pets || shared.afterPowerCut() != pets {
		t.Errorf("after a power cut there are %d, %d, %d", unsynced.afterPowerCut(), each.afterPowerCut(), shared.afterPowerCut())
	}
	if each.syncs != pets || shared.syncs > pets/4 {
		t.Errorf("each pet by itself takes %d syncs, and all together %d", each.syncs, shared.syncs)
	}
}
