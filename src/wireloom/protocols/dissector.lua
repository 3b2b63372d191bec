-- Wireshark dissectors for the protocols of Wireloom: in the hub's journal, and on their ports in captures.
-- Put this file into Wireshark's folder for personal Lua plugins, or: tshark -X lua_script:wireloom.lua -r FILE

local wireloom = {}

-- A protocol whose frames follow each other in a stream. `measure(buffer, at)` gives the size of the frame at
-- byte `at`, nil when too little of it is there to say, or 0 when it is none. `show(buffer, tree, pinfo)` fills the
-- tree of one whole frame and returns its name.
function wireloom.stream(protocol, port, measure, show)
  function protocol.dissector(buffer, pinfo, root)
    pinfo.cols.protocol = protocol.description
    local at, names = 0, {}
    while at < buffer:len() do
      local size = measure(buffer, at)
      if size == 0 then
        root:add(protocol, buffer(at)):append_text(", not a frame"):add_expert_info(PI_MALFORMED, PI_ERROR)
        break
      elseif size == nil or at + size > buffer:len() then
        if pinfo.can_desegment > 0 then
          pinfo.desegment_offset = at
          pinfo.desegment_len = size == nil and DESEGMENT_ONE_MORE_SEGMENT or at + size - buffer:len()
          return buffer:len()
        end
        root:add(protocol, buffer(at)):append_text(", goes on in the next block")
        break
      end
      local tree = root:add(protocol, buffer(at, size))
      local name = show(buffer(at, size):tvb(), tree, pinfo)
      tree:append_text(", " .. name)
      names[#names + 1] = name
      at = at + size
    end
    wireloom.summarise(pinfo, names)
    return buffer:len()
  end
  DissectorTable.get("tcp.port"):add(port, protocol)
end

function wireloom.summarise(pinfo, names)
  local text = table.concat(names, "; ", 1, math.min(#names, 3))
  if #names > 3 then text = text .. string.format("; and %d more", #names - 3) end
  pinfo.cols.info = text
end
