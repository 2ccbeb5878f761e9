# Makes kernels of several types of PTX for one: of bf16 for f16 too (halves.h), of f8 e4m3 for the pairs
# with e5m2. They have another type in their names and in lines with a mark, or what the mark has instead
# of the line. The number that stands for the type becomes that of bsk_dtype. Functions that are called
# and not in place (option quick_kernels) are there once more, but for those of C.

/^\.visible \.entry / {
    name = $3
    sub(/\(.*/, "", name)
    if (name ~ /bf16/)
        own = "bf16"
    else if (name ~ /e4m3_e4m3/)
        own = "e4m3.e4m3"
}
/^(\.visible |\.weak )?\.func/ {
    name = $0
    sub(/^.*\.func +(\([^)]*\) *)?/, "", name)
    sub(/\(.*/, "", name)
    called[name] = name ~ /^_Z/
}
/\/\*type/ { marked[name] = 1 }
{
    line[++count] = $0
    owner[count] = name
    sub(/1212238918/, "4")
    print
}
/^[};]/ { name = "" }

END {
    for (f in called)
        calls = calls || called[f]
    kinds = split(own == "bf16" ? "f16" : "e4m3.e5m2 e5m2.e4m3 e5m2.e5m2", kind, " ")
    for (k = 1; k <= kinds; k++)
        repeat(kind[k])
}

# Whether what line i belongs to is there for each type. Outside of functions are variables of theirs.
function typed(i, own_name)
{
    if (owner[i] == "")
        return calls && line[i] ~ /_Z/
    if (owner[i] in called)
        return called[owner[i]]
    return index(owner[i], own_name) && (calls || owner[i] in marked)
}

function repeat(type, own_name, type_name, i, text)
{
    own_name = own
    type_name = type
    sub(/\./, "_", own_name)
    sub(/\./, "_", type_name)
    for (i = 1; i <= count; i++) {
        if (!typed(i, own_name))
            continue
        text = line[i]
        if (match(text, /\/\*type: /))
            text = "\t" substr(text, RSTART + RLENGTH, length(text) - RSTART - RLENGTH - 1)
        else if (text ~ /\/\*type/)
            gsub(own, type, text)
        sub(/1212238918/, "3", text)
        if (!(owner[i] in called) && index(text, owner[i]))
            sub(own_name, type_name, text)
        if (calls)
            gsub(/_Z[A-Za-z0-9_]*/, "&_" type_name, text)
        print text
    }
}
