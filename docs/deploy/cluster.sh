#!/bin/sh
# Makes what the machines of a cluster need of each other: sh cluster.sh ADDRESS...
# The folder "cluster" gets an authority for certificates, passwords, and for each
# address a folder with the files of that machine. What is there already stays.
set -eu
umask 077
deploy=$(cd "$(dirname "$0")" && pwd)
mkdir -p cluster
cd cluster

key="-newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc"
[ -f ca.key ] || openssl req -x509 $key -days 3650 -subj "/CN=pet store cluster" \
	-keyout ca.key -out ca.crt 2>/dev/null
for user in petstore node admin; do
	[ -f "$user.password" ] || openssl rand -hex 20 >"$user.password"
done

for address; do
	[ ! -d "$address" ] || continue
	mkdir "$address"
	openssl req -x509 -CA ca.crt -CAkey ca.key $key -days 825 -subj "/CN=$address" \
		-extensions usr_cert -addext "subjectAltName=IP:$address" \
		-keyout "$address/node.key" -out "$address/node.crt" 2>/dev/null
	cp ca.crt "$address"
	(cd "$deploy" && cp haproxy.cfg rqlite.service petstore.service petstore-* "$OLDPWD/$address")
	for file in rqlite.env rqlite-auth.json rqlite-admin.curl petstore-cluster.env; do
		sed -e "s/=ADDRESS/=$address/" -e "s/PETSTORE-PASSWORD/$(cat petstore.password)/g" \
			-e "s/NODE-PASSWORD/$(cat node.password)/" \
			-e "s/ADMIN-PASSWORD/$(cat admin.password)/" "$deploy/$file" >"$address/$file"
	done
done
