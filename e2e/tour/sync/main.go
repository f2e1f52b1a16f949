// Exercise sync of docs/tour-store.md: pets that are confirmed before they are on disk.
package main

import "fmt"

// store stores a pet. When it returns, the client gets its 201.
func store(d *disk, pet string) {
	d.write(pet)
}

func main() {
	d := &disk{}
	confirmed := saveMany(func(pet string) { store(d, pet) })
	fmt.Println("pets confirmed:", confirmed)
	fmt.Printf("pets left after a power cut: %d, after %d syncs\n", d.afterPowerCut(), d.syncs)
}
