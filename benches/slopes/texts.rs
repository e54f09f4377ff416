//! Kinds of modules and of experiments that grow: each writes a text of about so many parts.

/// Comma after each but the first.
fn joined(n: usize, each: impl Fn(usize) -> String) -> String {
    (0..n).map(each).collect::<Vec<_>>().join(", ")
}

fn lines(n: usize, each: impl Fn(usize) -> String) -> String {
    (0..n).map(each).collect()
}

fn parameters(n: usize) -> String {
    lines(n, |at| format!("  p{at} = f32[4] parameter({at})\n"))
}

fn tuple_type(n: usize) -> String {
    format!("({})", joined(n, |_| "f32[4]".to_string()))
}

fn operands(n: usize) -> String {
    joined(n, |at| format!("p{at}"))
}

/// A computation that adds two numbers.
const SUM: &str =
    "sum {\n  lhs = f32[] parameter(0)\n  rhs = f32[] parameter(1)\n  ROOT both = f32[] add(lhs, rhs)\n}\n\n";

/// A text of about so many parts.
pub type Text = fn(usize) -> String;

/// Kinds of modules of about so many instructions, as text.
pub const MODULES: [(&str, Text); 46] = [
    ("chain", |n| {
        let step = |at: usize| format!("  x{} = f32[4] add(x{at}, x{at})\n", at + 1);
        format!(
            "HloModule m\n\nENTRY main {{\n  x0 = f32[4] parameter(0)\n{}  ROOT r = f32[4] negate(x{n})\n}}\n",
            lines(n, step)
        )
    }),
    ("tuple", |n| {
        format!(
            "HloModule m\n\nENTRY main {{\n{}  ROOT t = {} tuple({})\n}}\n",
            parameters(n),
            tuple_type(n),
            operands(n)
        )
    }),
    ("elements", |n| {
        let element = |at: usize| format!("  e{at} = f32[4] get-tuple-element(t), index={at}\n");
        let all = joined(n, |at| format!("e{at}"));
        let ty = tuple_type(n);
        format!(
            "HloModule m\n\nENTRY main {{\n  t = {ty} parameter(0)\n{}  ROOT r = {ty} tuple({all})\n}}\n",
            lines(n, element)
        )
    }),
    ("aliases", |n| {
        let aliases = joined(n, |at| format!("{{{at}}}: ({at}, {{}}, may-alias)"));
        let negate = |at: usize| format!("  n{at} = f32[4] negate(p{at})\n");
        let all = joined(n, |at| format!("n{at}"));
        format!(
            "HloModule m, input_output_alias={{ {aliases} }}\n\nENTRY main {{\n{}{}  ROOT t = {} tuple({all})\n}}\n",
            parameters(n),
            lines(n, negate),
            tuple_type(n)
        )
    }),
    ("aliases of a tuple", |n| {
        let aliases = joined(n, |at| format!("{{{at}}}: (0, {{{at}}}, may-alias)"));
        let ty = tuple_type(n);
        format!("HloModule m, input_output_alias={{ {aliases} }}\n\nENTRY main {{\n  ROOT t = {ty} parameter(0)\n}}\n")
    }),
    ("calls of one", |n| {
        let inner = lines(20, |at| format!("  y{} = f32[4] add(y{at}, y{at})\n", at + 1));
        let call = |at: usize| format!("  x{} = f32[4] call(x{at}), to_apply=f\n", at + 1);
        format!(
            "HloModule m\n\nf {{\n  y0 = f32[4] parameter(0)\n{inner}  ROOT z = f32[4] negate(y20)\n}}\n\nENTRY main {{\n  \
             x0 = f32[4] parameter(0)\n{}  ROOT r = f32[4] negate(x{n})\n}}\n",
            lines(n, call)
        )
    }),
    ("calls of many", |n| {
        let n = n / 4;
        let inner =
            |at: usize| format!("f{at} {{\n  y{at} = f32[4] parameter(0)\n  ROOT z{at} = f32[4] negate(y{at})\n}}\n\n");
        let call = |at: usize| format!("  x{} = f32[4] call(x{at}), to_apply=f{at}\n", at + 1);
        format!(
            "HloModule m\n\n{}ENTRY main {{\n  x0 = f32[4] parameter(0)\n{}  ROOT r = f32[4] negate(x{n})\n}}\n",
            lines(n, inner),
            lines(n, call)
        )
    }),
    ("branches", |n| {
        let n = n / 4;
        let inner =
            |at: usize| format!("f{at} {{\n  y{at} = f32[4] parameter(0)\n  ROOT z{at} = f32[4] negate(y{at})\n}}\n\n");
        format!(
            "HloModule m\n\n{}ENTRY main {{\n  i = s32[] parameter(0)\n  x = f32[4] parameter(1)\n  ROOT r = f32[4] \
             conditional(i, {}), branch_computations={{{}}}\n}}\n",
            lines(n, inner),
            joined(n, |_| "x".to_string()),
            joined(n, |at| format!("f{at}"))
        )
    }),
    ("conditionals", |n| {
        let step = |at: usize| {
            format!("  x{} = f32[4] conditional(p, x{at}, x{at}), true_computation=f, false_computation=g\n", at + 1)
        };
        format!(
            "HloModule m\n\nf {{\n  y = f32[4] parameter(0)\n  ROOT z = f32[4] negate(y)\n}}\n\ng {{\n  v = f32[4] \
             parameter(0)\n  ROOT w = f32[4] add(v, v)\n}}\n\nENTRY main {{\n  p = pred[] parameter(0)\n  x0 = f32[4] \
             parameter(1)\n{}  ROOT r = f32[4] negate(x{n})\n}}\n",
            lines(n, step)
        )
    }),
    ("while", |n| {
        let ty = tuple_type(n);
        let element = |at: usize| format!("  e{at} = f32[4] get-tuple-element(s), index={at}\n");
        let all = joined(n, |at| format!("e{at}"));
        format!(
            "HloModule m\n\nbody {{\n  s = {ty} parameter(0)\n{}  ROOT r = {ty} tuple({all})\n}}\n\ncondition {{\n  c = {ty} \
             parameter(0)\n  ROOT no = pred[] constant(false)\n}}\n\nENTRY main {{\n  t = {ty} parameter(0)\n  ROOT w = {ty} \
             while(t), condition=condition, body=body\n}}\n",
            lines(n, element)
        )
    }),
    ("concatenate", |n| {
        let all = operands(n);
        format!(
            "HloModule m\n\nENTRY main {{\n{}  ROOT r = f32[{}] concatenate({all}), dimensions={{0}}\n}}\n",
            parameters(n),
            4 * n
        )
    }),
    ("barrier", |n| {
        let ty = tuple_type(n);
        let all = operands(n);
        format!(
            "HloModule m\n\nENTRY main {{\n{}  t = {ty} tuple({all})\n  ROOT r = {ty} opt-barrier(t)\n}}\n",
            parameters(n)
        )
    }),
    ("custom call", |n| {
        let all = operands(n);
        format!(
            "HloModule m\n\nENTRY main {{\n{}  ROOT r = {} custom-call({all}), custom_call_target=\"f\"\n}}\n",
            parameters(n),
            tuple_type(n)
        )
    }),
    ("lookups", |n| {
        let look = |at: usize| format!("  d{at} = f32[1,4] dynamic-slice(t, i, z), dynamic_slice_sizes={{1,4}}\n");
        let all = joined(n, |at| format!("d{at}"));
        let ty = joined(n, |_| "f32[1,4]".to_string());
        format!(
            "HloModule m\n\nENTRY main {{\n  t = f32[64,4] parameter(0)\n  i = s32[] parameter(1)\n  z = s32[] constant(0)\n{}  \
             ROOT r = ({ty}) tuple({all})\n}}\n",
            lines(n, look)
        )
    }),
    ("layers", |n| {
        let layer = |at: usize| {
            format!(
                "  p{at} = f32[8,8] dot(x{at}, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n  s{at} = f32[8,8] \
                 add(p{at}, b)\n  e{at} = f32[8,8] exponential(s{at})\n  r{at} = f32[8] reduce(e{at}, zero), \
                 dimensions={{1}}, to_apply=sum\n  q{at} = f32[8,8] broadcast(r{at}), dimensions={{0}}\n  x{} = f32[8,8] \
                 divide(e{at}, q{at})\n",
                at + 1
            )
        };
        format!(
            "HloModule m\n\n{SUM}ENTRY main {{\n  x0 = f32[8,8] parameter(0)\n  w = f32[8,8] parameter(1)\n  b = f32[8,8] \
             parameter(2)\n  zero = f32[] constant(0)\n{}  ROOT t = f32[8,8] negate(x{})\n}}\n",
            lines(n / 6, layer),
            n / 6
        )
    }),
    ("products of one", |n| {
        let product = |at: usize| {
            format!(
                "  x{} = f32[8,8] dot(x{at}, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n  u{at} = f32[8,8] \
                 dot(x{at}, w), lhs_contracting_dims={{0}}, rhs_contracting_dims={{1}}\n",
                at + 1
            )
        };
        let n = n / 2;
        format!(
            "HloModule m\n\nENTRY main {{\n  x0 = f32[8,8] parameter(0)\n  w = f32[8,8] parameter(1)\n{}  ROOT t = ({}) \
             tuple({})\n}}\n",
            lines(n, product),
            joined(n, |_| "f32[8,8]".to_string()),
            joined(n, |at| format!("u{at}"))
        )
    }),
    ("users of one", |n| {
        let users = lines(n, |at| format!("  n{at} = f32[4] multiply(x, p{at})\n"));
        format!(
            "HloModule m\n\nENTRY main {{\n{}  x = f32[4] exponential(p0)\n{users}  ROOT t = {} tuple({})\n}}\n",
            parameters(n),
            tuple_type(n),
            joined(n, |at| format!("n{at}"))
        )
    }),
    ("pairs", |n| {
        let pair = |at: usize| {
            format!(
                "  a{at} = f32[4] negate(x{at})\n  b{at} = f32[4] exponential(x{at})\n  x{} = f32[4] add(a{at}, b{at})\n",
                at + 1
            )
        };
        format!(
            "HloModule m\n\nENTRY main {{\n  x0 = f32[4] parameter(0)\n{}  ROOT r = f32[4] negate(x{})\n}}\n",
            lines(n / 3, pair),
            n / 3
        )
    }),
    ("casts", |n| {
        let pair = |at: usize| format!("  b{at} = bf16[4] convert(x{at})\n  x{} = f32[4] convert(b{at})\n", at + 1);
        format!(
            "HloModule m\n\nENTRY main {{\n  x0 = f32[4] parameter(0)\n{}  ROOT r = f32[4] negate(x{})\n}}\n",
            lines(n / 2, pair),
            n / 2
        )
    }),
    ("fusion of all", |n| {
        let n = n / 3;
        let sums = lines(n, |at| format!("  s{} = f32[4] add(s{at}, q{at})\n", at + 1));
        format!(
            "HloModule m\n\nfused {{\n{}  s0 = f32[4] negate(q0)\n{sums}  ROOT v = f32[4] negate(s{n})\n}}\n\nENTRY main \
             {{\n{}  ROOT r = f32[4] fusion({}), kind=kLoop, calls=fused\n}}\n",
            lines(n, |at| format!("  q{at} = f32[4] parameter({at})\n")),
            parameters(n),
            operands(n)
        )
    }),
    ("fusions", |n| {
        let n = n / 4;
        let inner =
            |at: usize| format!("f{at} {{\n  y{at} = f32[4] parameter(0)\n  ROOT z{at} = f32[4] negate(y{at})\n}}\n\n");
        let fusion = |at: usize| format!("  x{} = f32[4] fusion(x{at}), kind=kLoop, calls=f{at}\n", at + 1);
        format!(
            "HloModule m\n\n{}ENTRY main {{\n  x0 = f32[4] parameter(0)\n{}  ROOT r = f32[4] negate(x{n})\n}}\n",
            lines(n, inner),
            lines(n, fusion)
        )
    }),
    ("loops", |n| {
        let n = n / 10;
        let inner = |at: usize| {
            format!(
                "b{at} {{\n  s{at} = (s32[], f32[4]) parameter(0)\n  i{at} = s32[] get-tuple-element(s{at}), index=0\n  \
                 y{at} = f32[4] get-tuple-element(s{at}), index=1\n  z{at} = f32[4] exponential(y{at})\n  ROOT r{at} = \
                 (s32[], f32[4]) tuple(i{at}, z{at})\n}}\n\nc{at} {{\n  t{at} = (s32[], f32[4]) parameter(0)\n  ROOT n{at} \
                 = pred[] constant(false)\n}}\n\n"
            )
        };
        let step = |at: usize| format!("  x{} = (s32[], f32[4]) while(x{at}), condition=c{at}, body=b{at}\n", at + 1);
        format!(
            "HloModule m\n\n{}ENTRY main {{\n  x0 = (s32[], f32[4]) parameter(0)\n{}  ROOT r = f32[4] \
             get-tuple-element(x{n}), index=1\n}}\n",
            lines(n, inner),
            lines(n, step)
        )
    }),
    ("call of all", |n| {
        let n = n / 2;
        let (ty, all) = (tuple_type(n), operands(n));
        let inner = lines(n, |at| format!("  q{at} = f32[4] parameter({at})\n"));
        let tuple = joined(n, |at| format!("q{at}"));
        format!(
            "HloModule m\n\nf {{\n{inner}  ROOT u = {ty} tuple({tuple})\n}}\n\nENTRY main {{\n{}  ROOT r = {ty} call({all}), \
             to_apply=f\n}}\n",
            parameters(n)
        )
    }),
    ("conditional of all", |n| {
        let n = n / 3;
        let ty = tuple_type(n);
        let branch = |name: &str| {
            let elements = lines(n, |at| format!("  {name}{at} = f32[4] get-tuple-element({name}), index={at}\n"));
            let all = joined(n, |at| format!("{name}{at}"));
            format!("b{name} {{\n  {name} = {ty} parameter(0)\n{elements}  ROOT {name}t = {ty} tuple({all})\n}}\n\n")
        };
        format!(
            "HloModule m\n\n{}{}ENTRY main {{\n{}  p = pred[] parameter({n})\n  t = {ty} tuple({})\n  ROOT r = {ty} \
             conditional(p, t, t), true_computation=bx, false_computation=by\n}}\n",
            branch("x"),
            branch("y"),
            parameters(n),
            operands(n)
        )
    }),
    ("sort of all", |n| {
        let n = n / 3;
        let inner = lines(2 * n, |at| format!("  q{at} = f32[] parameter({at})\n"));
        let ty = tuple_type(n);
        format!(
            "HloModule m\n\nless {{\n{inner}  ROOT v = pred[] compare(q0, q1), direction=LT\n}}\n\nENTRY main {{\n{}  ROOT r \
             = {ty} sort({}), dimensions={{0}}, to_apply=less\n}}\n",
            parameters(n),
            operands(n)
        )
    }),
    ("reduce of all", |n| {
        let n = n / 4;
        let inner = lines(2 * n, |at| format!("  q{at} = f32[] parameter({at})\n"));
        let sums = lines(n, |at| format!("  s{at} = f32[] add(q{at}, q{})\n", n + at));
        let ty = format!("({})", joined(n, |_| "f32[]".to_string()));
        let inits = joined(n, |_| "zero".to_string());
        format!(
            "HloModule m\n\nsums {{\n{inner}{sums}  ROOT u = {ty} tuple({})\n}}\n\nENTRY main {{\n{}  zero = f32[] \
             constant(0)\n  ROOT r = {ty} reduce({}, {inits}), dimensions={{0}}, to_apply=sums\n}}\n",
            joined(n, |at| format!("s{at}")),
            parameters(n),
            operands(n)
        )
    }),
    ("all-reduce of all", |n| {
        format!(
            "HloModule m\n\n{SUM}ENTRY main {{\n{}  ROOT r = {} all-reduce({}), replica_groups={{}}, to_apply=sum\n}}\n",
            parameters(n),
            tuple_type(n),
            operands(n)
        )
    }),
    ("scalars", |n| {
        let sums = lines(n, |at| format!("  s{at} = f32[] reduce(p{at}, zero), dimensions={{0}}, to_apply=sum\n"));
        let ty = format!("({})", joined(n, |_| "f32[]".to_string()));
        format!(
            "HloModule m\n\n{SUM}ENTRY main {{\n{}  zero = f32[] constant(0)\n{sums}  ROOT r = {ty} tuple({})\n}}\n",
            parameters(n),
            joined(n, |at| format!("s{at}"))
        )
    }),
    ("slices", |n| {
        let slices = lines(n, |at| format!("  s{at} = f32[1,4] slice(x), slice={{[{at}:{}], [0:4]}}\n", at + 1));
        let steps = lines(n, |at| format!("  t{at} = f32[1,4] tanh(s{at})\n"));
        format!(
            "HloModule m\n\nENTRY main {{\n  x = f32[{n},4] parameter(0)\n{slices}{steps}  ROOT r = f32[{n},4] \
             concatenate({}), dimensions={{0}}\n}}\n",
            joined(n, |at| format!("t{at}"))
        )
    }),
    ("while of products", |n| {
        let n = n / 2;
        let ty = tuple_type(n);
        let elements = lines(n, |at| format!("  e{at} = f32[4] get-tuple-element(s), index={at}\n"));
        let products = lines(n, |at| format!("  m{at} = f32[4] multiply(e{at}, e{})\n", (at + 1) % n));
        format!(
            "HloModule m\n\nbody {{\n  s = {ty} parameter(0)\n{elements}{products}  ROOT u = {ty} tuple({})\n}}\n\n\
             condition {{\n  t = {ty} parameter(0)\n  ROOT n = pred[] constant(false)\n}}\n\nENTRY main {{\n{}  a = {ty} \
             tuple({})\n  ROOT r = {ty} while(a), condition=condition, body=body\n}}\n",
            joined(n, |at| format!("m{at}")),
            parameters(n),
            operands(n)
        )
    }),
    ("groups", |n| {
        let groups = joined(n, |at| format!("{{{at}}}"));
        format!(
            "HloModule m, replica_count={n}\n\n{SUM}ENTRY main {{\n  x = f32[4] parameter(0)\n  ROOT r = f32[4] \
             all-reduce(x), replica_groups={{{groups}}}, to_apply=sum\n}}\n"
        )
    }),
    ("pairs of devices", |n| {
        let pairs = joined(n, |at| format!("{{{at},{}}}", (at + 1) % n));
        format!(
            "HloModule m, replica_count={n}\n\nENTRY main {{\n  x = f32[4] parameter(0)\n  ROOT r = f32[4] \
             collective-permute(x), source_target_pairs={{{pairs}}}\n}}\n"
        )
    }),
    ("sharding", |n| {
        let devices = joined(n, |at| at.to_string()).replace(' ', "");
        format!(
            "HloModule m, num_partitions={n}\n\nENTRY main {{\n  x = f32[{n}] parameter(0), sharding={{devices=[{n}]{devices}}}\n  \
             ROOT r = f32[{n}] negate(x)\n}}\n"
        )
    }),
    ("attributes", |n| {
        let attributes = joined(n, |at| format!("k{at}=\"v\""));
        format!(
            "HloModule m\n\nENTRY main {{\n  x = f32[4] parameter(0)\n  ROOT r = f32[4] negate(x), \
             frontend_attributes={{{attributes}}}\n}}\n"
        )
    }),
    ("control", |n| {
        let steps = lines(n, |at| format!("  n{at} = f32[4] negate(p{at})\n"));
        let all = joined(n, |at| format!("n{at}"));
        format!(
            "HloModule m\n\nENTRY main {{\n{}{steps}  ROOT r = f32[4] negate(p0), control-predecessors={{{all}}}\n}}\n",
            parameters(n)
        )
    }),
    ("metadata", |n| {
        let step = |at: usize| {
            format!(
                "  x{} = f32[4] add(x{at}, x{at}), metadata={{op_type=\"add\" op_name=\"jit(step)/transformer/block{at}/{}/add\" \
                 source_file=\"/models/transformer/block{}.py\" source_line={at}}}\n",
                at + 1,
                "attention/".repeat(12),
                at % 100
            )
        };
        format!(
            "HloModule m\n\nENTRY main {{\n  x0 = f32[4] parameter(0)\n{}  ROOT r = f32[4] negate(x{n})\n}}\n",
            lines(n, step)
        )
    }),
    ("frames", |n| {
        let n = n / 4;
        let names = |letter: char| lines(n, |at| format!("{} \"{letter}{at}\"\n", at + 1));
        let location = |at: usize| {
            format!("{0} {{file_name_id={0} function_name_id={0} line=1 end_line=1 column=1 end_column=2}}\n", at + 1)
        };
        // Each called by the one before it, the first by itself, as XLA writes what nothing called.
        let frame = |at: usize| format!("{} {{file_location_id={} parent_frame_id={}}}\n", at + 1, at + 1, at.max(1));
        let step = |at: usize| format!("  x{0} = f32[4] add(x{at}, x{at}), metadata={{stack_frame_id={0}}}\n", at + 1);
        format!(
            "HloModule m\n\nFileNames\n{}\nFunctionNames\n{}\nFileLocations\n{}\nStackFrames\n{}\nENTRY main {{\n  x0 = f32[4] \
             parameter(0)\n{}  ROOT r = f32[4] negate(x{n})\n}}\n",
            names('a'),
            names('f'),
            lines(n, location),
            lines(n, frame),
            lines(n, step)
        )
    }),
    ("names alike", |n| {
        let step = |at: usize| {
            let before = if at == 0 { "x".to_string() } else { format!("add.{at}") };
            format!("  add.{} = f32[4] add({before}, x)\n", at + 1)
        };
        format!(
            "HloModule m\n\nENTRY main {{\n  x = f32[4] parameter(0)\n{}  ROOT add = f32[4] negate(add.{n})\n}}\n",
            lines(n, step)
        )
    }),
    ("constants", |n| {
        let constant = |at: usize| format!("  c{at} = f32[] constant({at})\n");
        let ty = joined(n, |_| "f32[]".to_string());
        format!(
            "HloModule m\n\nENTRY main {{\n{}  ROOT t = ({ty}) tuple({})\n}}\n",
            lines(n, constant),
            joined(n, |at| format!("c{at}"))
        )
    }),
    ("a constant", |n| {
        let values = joined(8 * n, |at| at.to_string());
        format!("HloModule m\n\nENTRY main {{\n  ROOT c = f32[{}] constant({{{values}}})\n}}\n", 8 * n)
    }),
    ("updates", |n| {
        let update = |at: usize| format!("  x{} = f32[64,4] dynamic-update-slice(x{at}, u, i, z)\n", at + 1);
        format!(
            "HloModule m\n\nENTRY main {{\n  x0 = f32[64,4] parameter(0)\n  u = f32[1,4] parameter(1)\n  i = s32[] parameter(2)\n  \
             z = s32[] constant(0)\n{}  ROOT r = f32[64,4] negate(x{n})\n}}\n",
            lines(n, update)
        )
    }),
    ("gathers", |n| {
        let gather = |at: usize| {
            format!(
                "  g{at} = f32[8,4] gather(t, i), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, \
                 index_vector_dim=1, slice_sizes={{1,4}}\n"
            )
        };
        format!(
            "HloModule m\n\nENTRY main {{\n  t = f32[64,4] parameter(0)\n  i = s32[8] parameter(1)\n{}  ROOT r = ({}) \
             tuple({})\n}}\n",
            lines(n, gather),
            joined(n, |_| "f32[8,4]".to_string()),
            joined(n, |at| format!("g{at}"))
        )
    }),
    ("copies that wait", |n| {
        let n = n / 2;
        let ty = "(f32[4], f32[4], u32[])";
        let copy = |at: usize| format!("  s{at} = {ty} copy-start(x{at})\n  x{} = f32[4] copy-done(s{at})\n", at + 1);
        format!(
            "HloModule m\n\nENTRY main {{\n  x0 = f32[4] parameter(0)\n{}  ROOT r = f32[4] negate(x{n})\n}}\n",
            lines(n, copy)
        )
    }),
    ("calls in calls", |n| {
        // Calls nest 128 deep at most.
        const DEPTH: usize = 64;
        let n = n / (2 * DEPTH);
        let inner = |at: usize| {
            let root = match at % DEPTH {
                0 => format!("negate(y{at})"),
                _ => format!("call(y{at}), to_apply=f{}", at - 1),
            };
            format!("f{at} {{\n  y{at} = f32[4] parameter(0)\n  ROOT z{at} = f32[4] {root}\n}}\n\n")
        };
        let call = |at: usize| format!("  x{} = f32[4] call(x{at}), to_apply=f{}\n", at + 1, (at + 1) * DEPTH - 1);
        format!(
            "HloModule m\n\n{}ENTRY main {{\n  x0 = f32[4] parameter(0)\n{}  ROOT r = f32[4] negate(x{n})\n}}\n",
            lines(n * DEPTH, inner),
            lines(n, call)
        )
    }),
    ("long names", |n| {
        let n = n / 64;
        let name = |at: usize| format!("x{at}{}", "_of_a_long_name".repeat(32));
        let step = |at: usize| format!("  {0} = f32[4] add({1}, {1})\n", name(at + 1), name(at));
        format!(
            "HloModule m\n\nENTRY main {{\n  {} = f32[4] parameter(0)\n{}  ROOT r = f32[4] negate({})\n}}\n",
            name(0),
            lines(n, step),
            name(n)
        )
    }),
    ("many dims", |n| {
        let n = n / 64;
        let ty = format!("f32[{}]", joined(64, |_| "1".to_string()).replace(' ', ""));
        let step = |at: usize| format!("  x{} = {ty} add(x{at}, x{at})\n", at + 1);
        format!(
            "HloModule m\n\nENTRY main {{\n  x0 = {ty} parameter(0)\n{}  ROOT r = {ty} negate(x{n})\n}}\n",
            lines(n, step)
        )
    }),
];

/// Kinds of experiments of about so many keys.
pub const DOCUMENTS: [(&str, Text); 12] = [
    ("unknown keys", |n| {
        let keys = joined(n, |at| format!("k{at}: {at}"));
        format!("model: {{kind: mlp, input: [4], n_classes: 2, hidden: [4], {keys}}}\n")
    }),
    ("keys of a layer", |n| {
        let keys = joined(n, |at| format!("k{at}: {at}"));
        format!(
            "model: {{kind: layers, inputs: {{x: [4]}}, layers: [{{dense: 2, {keys}}}], loss: mean_squared_error}}\n"
        )
    }),
    ("hidden", |n| {
        format!("model: {{kind: mlp, input: [4], n_classes: 2, hidden: [{}]}}\n", joined(n, |_| "4".to_string()))
    }),
    ("features", |n| {
        let features = lines(n, |at| format!("    f{at}: {{key: k{at}}}\n"));
        format!(
            "model: {{kind: mlp, input: [4], n_classes: 2, hidden: [4]}}\ndata:\n  tfrecord: none\n  features:\n{features}"
        )
    }),
    ("patterns", |n| {
        let patterns = joined(n, |at| format!("'*/p{at}/*'"));
        format!("model: {{kind: mlp, input: [4], n_classes: 2, hidden: [4]}}\ntrain: {{trainable: [{patterns}]}}\n")
    }),
    ("shards", |n| {
        let files = lines(n, |at| format!("    - shard-{at}.tfrecord\n"));
        format!(
            "model: {{kind: mlp, input: [4], n_classes: 2, hidden: [4]}}\ndata:\n  features: {{x: {{key: x}}}}\n  tfrecord:\n{files}"
        )
    }),
    ("comments", |n| {
        let comments = lines(n, |at| format!("# {at}: nothing is said here\n"));
        format!("{comments}model: {{kind: mlp, input: [4], n_classes: 2, hidden: [4]}}\n")
    }),
    ("aliases of one", |n| {
        let features = lines(n, |at| format!("    f{at}: *one\n"));
        format!(
            "model: {{kind: mlp, input: [4], n_classes: 2, hidden: [4]}}\ndata:\n  tfrecord: none\n  features:\n    one: &one {{key: x}}\n{features}"
        )
    }),
    ("merge keys", |n| {
        let features = lines(n, |at| format!("    f{at}: {{<<: *one, shape: [4]}}\n"));
        format!(
            "model: {{kind: mlp, input: [4], n_classes: 2, hidden: [4]}}\ndata:\n  tfrecord: none\n  features:\n    one: &one {{key: x}}\n{features}"
        )
    }),
    ("a long text", |n| {
        let text = lines(n, |at| format!("      line {at} of a text\n"));
        format!("model:\n  kind: mlp\n  input: [4]\n  n_classes: 2\n  hidden: |\n{text}")
    }),
    ("keys in keys", |n| {
        let keys = lines(n, |at| format!("    k{at}: {{a: {{b: {{c: {at}}}}}}}\n"));
        format!("model: {{kind: mlp, input: [4], n_classes: 2, hidden: [4]}}\ndata:\n  csv: a.csv\n  columns:\n{keys}")
    }),
    ("bytes of a word", |n| {
        format!("model: {{kind: {}, input: [4], n_classes: 2, hidden: [4]}}\n", "m".repeat(16 * n))
    }),
];

/// Kinds of networks of about so many parts, an eighth as many layers, whose programs are made too.
pub const NETWORKS: [(&str, Text); 6] = [
    ("layers", |n| {
        let layers = lines(n / 8, |_| "    - {activation: relu, dense: 4}\n".to_string());
        format!(
            "model:\n  kind: layers\n  inputs: {{x: [4]}}\n  labels: {{y: [4]}}\n  loss: {{mean_squared_error: , labels: y}}\n  layers:\n{layers}"
        )
    }),
    ("named layers", |n| {
        let layer = |at: usize| {
            let input = if at == 0 { "x".to_string() } else { format!("l{}", at - 1) };
            format!("    - {{dense: 4, name: l{at}, inputs: {input}}}\n")
        };
        format!(
            "model:\n  kind: layers\n  inputs: {{x: [4]}}\n  labels: {{y: [4]}}\n  loss: {{mean_squared_error: , labels: y}}\n  layers:\n{}",
            lines(n / 8, layer)
        )
    }),
    ("losses", |n| judged(n / 8, |at| format!("    - {{mean_squared_error: , labels: y, output: o{at}}}\n"), "")),
    ("losses alike", |n| judged(n / 8, |_| "    - {mean_squared_error: , labels: y, output: o0}\n".to_string(), "")),
    ("losses of a name", |n| {
        judged(n / 8, |at| format!("    - {{mean_squared_error: , labels: y, output: o{at}, name: all}}\n"), "")
    }),
    ("metrics", |n| {
        let metric = |at: usize| format!("    - {{mean_absolute_error: , labels: y, output: o{at}, name: m{at}}}\n");
        let metrics = lines(n / 8, metric);
        judged(
            n / 8,
            |at| format!("    - {{mean_squared_error: , labels: y, output: o{at}}}\n"),
            &format!("  metrics:\n{metrics}"),
        )
    }),
];

/// A network of `n` outputs, with losses that judge them.
fn judged(n: usize, loss: fn(usize) -> String, metrics: &str) -> String {
    let outputs = joined(n, |at| format!("o{at}: l{at}"));
    let layers = lines(n, |at| format!("    - {{dense: 4, name: l{at}, inputs: x}}\n"));
    format!(
        "model:\n  kind: layers\n  inputs: {{x: [4]}}\n  labels: {{y: [4]}}\n  outputs: {{{outputs}}}\n  layers:\n{layers}  \
         loss:\n{}{metrics}",
        lines(n, loss)
    )
}
