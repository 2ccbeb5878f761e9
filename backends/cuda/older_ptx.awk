# PTX for an older architecture, made of that for a newer one:
#   awk -v target=80 -f older_ptx.awk FILE
# Kernels differ between architectures by these instructions alone; the assembler refuses others.

/^\.target / { print ".target sm_" target; next }

# Before 9.0 a kernel starts when what was before it has ended.
target < 90 && /^\tgriddepcontrol\./ { next }

# Before 8.0 no instruction rounds to bf16 (bf16_bits in simt.h).
target < 80 && $1 == "cvt.rn.bf16x2.f32" {
    gsub(/[,;]/, "")
    print "\t{\n\t.reg .b32 high, low;"
    round("high", $3)
    round("low", $4)
    print "\tprmt.b32 \t" $2 ", low, high, 0x5410;\n\t}"
    next
}

{ print }

function round(result, number)
{
    print "\t{\n\t.reg .pred nan;\n\t.reg .b32 bits, half, part;"
    print "\tmov.b32 \tbits, " number ";"
    print "\tand.b32 \tpart, bits, 0x7fffffff;"
    print "\tsetp.gt.u32 \tnan, part, 0x7f800000;"
    print "\tshr.u32 \thalf, bits, 16;"
    print "\tand.b32 \tpart, half, 1;"
    print "\tor.b32 \thalf, half, 0x40;"
    print "\tadd.s32 \tpart, bits, part;"
    print "\tadd.s32 \tpart, part, 0x7fff;"
    print "\tshr.u32 \tpart, part, 16;"
    print "\tselp.b32 \t" result ", half, part, nan;\n\t}"
}
