#!/bin/sh
# Makes what the machines of a cluster need of each other: sh cluster.sh ADDRESS...
# The folder "cluster" gets an authority for certificates, passwords, and for each
# address a folder with the files of that machine. What is there already stays.
set -eu
umask 077
deploy=$(cd "$(dirname "$0")" && pwd)
mkdir -p cluster
cd cluster

certificate() { # What openssl says matters only when it fails.
	said=$(openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc "$@" 2>&1) || {
		echo "$said" >&2
		exit 1
	}
}

if [ ! -f ca.crt ]; then
	certificate -days 3650 -subj "/CN=pet store cluster" -keyout ca.key -out ca.crt.new
	mv ca.crt.new ca.crt
fi
for user in petstore node admin; do
	[ -s "$user.password" ] || openssl rand -hex 20 >"$user.password"
done

for address; do
	[ ! -d "$address" ] || continue
	new=$address.new # until it is complete
	rm -rf "$new"
	mkdir "$new"
	certificate -CA ca.crt -CAkey ca.key -days 825 -subj "/CN=$address" \
		-extensions usr_cert -addext "subjectAltName=IP:$address" \
		-keyout "$new/node.key" -out "$new/node.crt"
	cp ca.crt "$new"
	(cd "$deploy" && cp haproxy.cfg rqlite.service petstore.service petstore-* "$OLDPWD/$new")
	for file in rqlite.env rqlite-auth.json rqlite-admin.curl petstore-cluster.env; do
		sed -e "s/=ADDRESS/=$address/" -e "s/PETSTORE-PASSWORD/$(cat petstore.password)/g" \
			-e "s/NODE-PASSWORD/$(cat node.password)/" \
			-e "s/ADMIN-PASSWORD/$(cat admin.password)/" "$deploy/$file" >"$new/$file"
	done
	mv "$new" "$address"
done
