//go:build !(linux || darwin || freebsd)

package main

// diskSpace tells nothing here: disk_unix.go has the systems on which it does.
func diskSpace(string) (free, size float64, ok bool) { return 0, 0, false }

// networkDisk knows no file systems here.
func networkDisk(string) string { return "" }

// mount is what disk_unix.go reads of one. Here, none is known.
type mount struct{}

func readMounts() []mount                 { return nil }
func isMountedAlone(string, []mount) bool { return false }
func othersMayWrite(string, []mount) bool { return false }

// bootID is not known here.
func bootID() string { return "" }
