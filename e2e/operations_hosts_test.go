package e2e

// Proven here alone: of two machines on a volume that passes no locks on, one serves.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// twoMounts shows a folder at two places, as two machines see a volume that passes no locks on, and
// returns a program that runs petstore as if the second place were on a machine of its own.
func twoMounts(t *testing.T) (first, second, elsewhere string) {
	t.Helper()
	if _, err := exec.LookPath("bindfs"); err != nil || os.Getuid() != 0 {
		t.Skip("it needs bindfs, and root to mount")
	}
	dir := t.TempDir()
	var mounts []string
	for _, name := range []string{"real", "a", "b"} {
		mounts = append(mounts, filepath.Join(dir, name))
		noError(t, os.Mkdir(mounts[len(mounts)-1], 0o700))
	}
	for _, at := range mounts[1:] {
		if out, err := exec.Command("bindfs", mounts[0], at).CombinedOutput(); err != nil {
			t.Skipf("FUSE is missing: %v, %s", err, out)
		}
		t.Cleanup(func() { _ = exec.Command("umount", "-l", at).Run() })
	}
	boot := filepath.Join(dir, "boot_id")
	noError(t, os.WriteFile(boot, []byte("11111111-2222-3333-4444-555555555555\n"), 0o600))
	elsewhere = filepath.Join(dir, "petstore")
	script := fmt.Sprintf("#!/bin/sh\nexec unshare -m sh -c 'mount --bind %s "+
		"/proc/sys/kernel/random/boot_id && exec %s \"$@\"' sh \"$@\"\n", boot, binary)
	noError(t, os.WriteFile(elsewhere, []byte(script), 0o700))
	return mounts[1], mounts[2], elsewhere
}

// TestTwoMachinesOnOneVolumeThatPassesNoLocksOn lets one serve, whatever the order, and lose
// nothing that it has confirmed. After a power cut, the other one can take over.
func TestTwoMachinesOnOneVolumeThatPassesNoLocksOn(t *testing.T) {
	t.Parallel()
	first, second, elsewhere := twoMounts(t)
	a := &server{t: t, db: filepath.Join(first, "petstore.db")}
	a.key = a.newKey(unlimited...)
	a.run(debugFlags...)
	if log := a.log.String(); !strings.Contains(log, "may not pass locks on") {
		t.Errorf("the start does not warn:\n%s", log)
	}
	if stats := a.get(t, "/stats.json"); !strings.Contains(stats, `"networkDisk":"FUSE"`) {
		t.Errorf("the page is not told: %s", stats)
	}
	b := &server{t: t, db: filepath.Join(second, "petstore.db"), key: a.key, serves: elsewhere,
		commands: elsewhere}
	const refused = "a petstore on another machine serves it"
	for _, args := range [][]string{
		{"-addr", "127.0.0.1:0", "-db", b.db}, {"key", "create", "-db", b.db},
	} {
		out, err := b.program(args...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), refused) {
			t.Errorf("%q: %v, %s", args, err, out)
		}
	}
	for i := range 50 {
		created, err := a.send(t.Context(), newHTTPClient(1), "POST", "/pets",
			animalJSON(fmt.Sprint("pet ", i)))
		noError(t, err)
		if created.status != 201 {
			t.Errorf("a create is %d", created.status)
		}
	}
	a.kill()
	b.run(debugFlags...) // three seconds after the power cut
	if n := strings.Count(b.command("pet", "export", "-db", b.db), "\n"); n != 50 {
		t.Errorf("%d pets are left of 50", n)
	}
	b.stop()
	if left, _ := filepath.Glob(filepath.Join(first, "*-host")); len(left) > 0 {
		t.Errorf("a stop leaves %q", left)
	}
}

// TestOfTwoMachinesThatStartAtOnceOneServes on a volume that passes no locks on.
func TestOfTwoMachinesThatStartAtOnceOneServes(t *testing.T) {
	t.Parallel()
	first, second, elsewhere := twoMounts(t)
	const aMoment = 50 * time.Millisecond // for the end of a process to be seen
	for round := range 3 {
		here := program("-addr", "127.0.0.1:0", "-db", filepath.Join(first, "petstore.db"))
		there := program("-addr", "127.0.0.1:0", "-db", filepath.Join(second, "petstore.db"))
		there.Path = elsewhere
		running := []*process{launch(t, here), launch(t, there)}
		eventually(t, longEnough, func() error {
			if running[0].within(aMoment) == running[1].within(aMoment) {
				return fmt.Errorf("both run, or none: %q; %q", &running[0].log, &running[1].log)
			}
			return nil
		})
		for _, p := range running {
			if !p.within(aMoment) {
				p.url()
				noError(t, p.cmd.Process.Kill())
				p.within(longEnough)
			} else if p.status() != 1 {
				t.Error(round, p.told())
			}
		}
	}
}
