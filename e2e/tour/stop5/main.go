// Stop 5 of docs/tour.md: pets that are confirmed before they are on disk.
package main

import (
	"fmt"
	"os"
)

// store stores a pet. When it returns, the client gets its 201.
func store(d *disk, pet string) {
	d.write(pet)
}

func main() {
	d := &disk{}
	save := func(pet string) { store(d, pet) }
	if len(os.Args) > 1 && os.Args[1] == "group" {
		save = (&group{disk: d}).store
	}
	confirmed := saveMany(save)
	fmt.Println("pets confirmed:", confirmed)
	fmt.Printf("pets left after a power cut: %d, after %d syncs\n", d.afterPowerCut(), d.syncs)
}
